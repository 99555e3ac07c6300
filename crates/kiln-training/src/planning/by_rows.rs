//! What a recorded pass asks for that differs in a store: parameters by rows, which are in memory some rows at a time, and smaller blocks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::tensor::{Tensor, TensorData};
use kiln_checkpointing::{Parts, RowParts};
use kiln_memory::StepTrace;

/// What a recorded pass has asked for.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    /// Whether the pass gets rows. Otherwise it reads the parameters as usual.
    by_rows: bool,
    /// Whether the pass is that of a step in a store.
    streams: bool,
    parameters: RefCell<HashSet<ParamId>>,
    /// How updates in a store divide parameters, which the optimizer says.
    parts: Cell<Option<Parts>>,
    /// Whether the pass has asked where its blocks are.
    place: Cell<bool>,
}

impl Asked {
    /// For a pass of a step in a store, with rows or without.
    pub(crate) fn in_store(by_rows: bool) -> Self {
        Self { by_rows, streams: true, ..Self::default() }
    }

    /// Whether the pass is that of a step in a store.
    pub(crate) fn streams(&self) -> bool {
        self.place.set(true);
        self.streams
    }

    /// Says how updates in a store divide parameters.
    pub(crate) fn divide(&self, parts: Option<Parts>) {
        self.parts.set(parts);
    }

    /// The step, which knows how much of each parameter an update in a store has in memory.
    pub(crate) fn divided(&self, trace: StepTrace) -> StepTrace {
        match self.parts.get() {
            Some(parts) => trace.with_parts_in_store(|shape| {
                4 * parts.rows(shape) as u64 * shape[1..].iter().map(|size| *size as u64).product::<u64>()
            }),
            None => trace,
        }
    }

    /// Notes a parameter that is divided into parts in a store.
    pub(crate) fn rows(&self, parameter: &Param<Tensor<2>>) -> Option<Arc<dyn RowParts>> {
        let shape = parameter.base().dims();
        let rows = Sizes { shape, rows: self.parts.get()?.rows(&shape) };
        if rows.count() > 1 {
            self.parameters.borrow_mut().insert(parameter.id);
        }
        (self.by_rows && rows.count() > 1).then(|| Arc::new(rows) as Arc<dyn RowParts>)
    }

    pub(crate) fn any_rows(&self) -> bool {
        !self.parameters.borrow().is_empty()
    }

    /// Whether the pass has asked where its blocks are.
    pub(crate) fn place(&self) -> bool {
        self.place.get()
    }

    /// The paths of these parameters of `model`.
    pub(crate) fn paths(&self, model: &impl Module) -> BTreeSet<String> {
        struct Paths<'a>(&'a HashSet<ParamId>, Vec<String>, BTreeSet<String>);
        impl ModuleVisitor for Paths<'_> {
            fn enter_module(&mut self, name: &str, _: &str) {
                self.1.push(name.to_owned());
            }

            fn exit_module(&mut self, _: &str, _: &str) {
                self.1.pop();
            }

            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.0.contains(&param.id) {
                    self.2.insert(self.1.join("."));
                }
            }
        }
        let parameters = self.parameters.borrow();
        let mut paths = Paths(&parameters, vec![], BTreeSet::new());
        model.visit(&mut paths);
        paths.2
    }
}

/// The trained parameters among `asked` that no other operation uses, with the bytes that an update has in memory: burn makes no gradient of
/// them.
pub(crate) fn only_by_rows(plain: &StepTrace, by_rows: &StepTrace, asked: &BTreeSet<String>) -> BTreeMap<String, u64> {
    let others: BTreeSet<&str> = by_rows.learned_parameters().into_iter().map(|(path, _)| path).collect();
    let learned = plain.learned_parameters().into_iter();
    let found = learned.filter(|(path, _)| asked.contains(*path) && !others.contains(path));
    let of_part = |path: &str, elements: u64| plain.part_in_store(path).unwrap_or(4 * elements);
    found.map(|(path, elements)| (path.to_owned(), of_part(path, elements))).collect()
}

/// The sizes of a matrix in parts. Recorded operations do not read it.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    shape: [usize; 2],
    rows: usize,
}

impl RowParts for Sizes {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn rows_of_part(&self) -> usize {
        self.rows
    }

    fn read(&self, part: usize) -> TensorData {
        TensorData::zeros::<f32, _>([self.rows(part).len(), self.shape[1]])
    }

    fn begin_use(&self) {}

    fn add_gradient(&self, _: usize, _: TensorData) {}
}
