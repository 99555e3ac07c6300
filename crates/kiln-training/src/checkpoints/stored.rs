//! Checkpoints of a run whose parameters are in a store: the files are those of any run, and one tensor is in memory at a time.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::store::{ModuleAdapter, ModuleContext};
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, Bytes, DType, Device, Int, Tensor, TensorData};
use burn_pack::{Reader, Tensor as Packed, Writer};
use kiln_checkpointing::Streamed;

use super::divided::{io, part_of, whole_state};
use super::joined::{JOINED, Joined};
use super::manifest::{MODEL, OPTIMIZER};
use crate::optimizer::StateRecord;

/// Writes the model and the state of the optimizer into the directory `path`.
///
/// # Errors
/// The reason.
pub(crate) fn save_stored<M: Module>(streamed: &Streamed, model: &M, path: &Path) -> Result<(), String> {
    let joined = Joined::at(path.join(JOINED));
    let mut collect = Collect { streamed, joined: &joined, place: vec![], tensors: vec![] };
    model.visit(&mut collect);
    Writer::new(collect.tensors).write_to_file(path.join(MODEL)).map_err(|e| e.to_string())?;
    let mut state = StateRecord::default();
    for id in streamed.ids() {
        state.extend(whole_state(streamed, id, &joined)?);
    }
    state.writer().write_to_file(path.join(OPTIMIZER)).map_err(|e| e.to_string())
}

/// The values of parameters that are in a store, for a model that is written to a file: an adapter of burn's stores, as
/// `SafetensorsStore`, which puts them in the places of the model's own. Made by [`Trainer::stored_values`](crate::Trainer::stored_values).
#[derive(Clone, Default)]
pub struct StoredValues(HashMap<u64, Packed>);

impl StoredValues {
    /// `directory`: where a file may be made while a large tensor is written.
    pub(crate) fn of(streamed: &Streamed, model: &impl Module, directory: Option<&Path>) -> Self {
        let joined = directory.map(|directory| Joined::at(directory.join(JOINED))).unwrap_or_default();
        let mut collect = Collect { streamed, joined: &joined, place: vec![], tensors: vec![] };
        model.visit(&mut collect);
        let tensors = collect.tensors.into_iter().filter_map(|tensor| Some((tensor.param_id?, tensor)));
        Self(tensors.filter(|(id, _)| streamed.contains((*id).into())).collect())
    }
}

impl ModuleAdapter for StoredValues {
    fn adapt(&self, tensor: Packed, _: ModuleContext<'_>) -> Packed {
        let Some(mut stored) = tensor.param_id.and_then(|id| self.0.get(&id)).cloned() else { return tensor };
        stored.name = tensor.name;
        stored
    }

    fn clone_box(&self) -> Box<dyn ModuleAdapter> {
        Box::new(self.clone())
    }
}

/// Writes the parameters and the state of the checkpoint in the directory `path` into the store, for its next commit. Returns `model` with
/// the tensors that are not in the store.
///
/// # Errors
/// The reason why it is no checkpoint of this model.
pub(crate) fn load_stored<M: Module>(streamed: &Streamed, model: M, path: &Path) -> Result<M, String> {
    let fail = |e: burn_pack::Error| e.to_string();
    let tensors = Reader::from_file(path.join(MODEL)).and_then(Reader::into_tensors).map_err(fail)?;
    let tensors: Result<_, _> = tensors.into_iter().map(|tensor| tensor.into_parts().map(named)).collect();
    let tensors = tensors.map_err(fail)?;
    let mut load = Load { streamed, tensors, place: vec![], own: HashMap::new(), failure: None };
    let model = model.map(&mut load);
    let unused = load.tensors.keys().next().map(|path| format!("the model has no {path}"));
    if let Some(reason) = load.failure.or(unused) {
        return Err(format!("not a checkpoint of this model: {reason}"));
    }
    let ids = streamed.ids().into_iter();
    let mut states: HashMap<ParamId, StateRecord> = ids.map(|id| (id, StateRecord::default())).collect();
    let all = StateRecord::of(Reader::from_file(path.join(OPTIMIZER)).map_err(fail)?)?;
    // Names begin with the parameter's id, which is another one in this run. The name of a path is the id alone.
    let renamed = |name: &str| {
        let id = name.split('.').next()?;
        let own = load.own.get(&id.parse().ok()?)?;
        Some((*own, format!("{}{}", own.val(), &name[id.len()..])))
    };
    for (name, scalar) in all.scalars {
        if let Some((id, name)) = renamed(&name) {
            states.entry(id).or_default().scalars.push((name, scalar));
        }
    }
    for (name, text) in all.metadata {
        if let Some((id, name)) = renamed(&name) {
            states.entry(id).or_default().metadata.push((name, text));
        }
    }
    for tensor in all.tensors {
        let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(fail)?;
        if let Some((id, name)) = renamed(&name) {
            let tensor = Packed::new(name, dtype, shape, Some(id.val()), bytes);
            states.entry(id).or_default().tensors.push(tensor);
        }
    }
    for (id, state) in states {
        let parts = streamed.parts(id);
        for part in 0..parts.len() {
            let bytes = match state.is_empty() {
                true => Bytes::from_bytes_vec(vec![]),
                false => part_of(&state, &parts, part)?.into_bytes()?,
            };
            streamed.write_state(id, part, &bytes).map_err(|e| e.to_string())?;
        }
    }
    Ok(model)
}

/// Collects the tensors of a model as burn's record has them. Those in the store are read when they are written.
struct Collect<'a> {
    streamed: &'a Streamed,
    joined: &'a Joined,
    place: Vec<String>,
    tensors: Vec<Packed>,
}

impl Collect<'_> {
    fn resident<const D: usize, K: Basic>(&mut self, id: ParamId, saved: Tensor<D, K>) {
        let (bytes, shape, dtype) = saved.into_data().into_parts();
        self.tensors.push(Packed::new(self.place.join("."), dtype, shape, Some(id.val()), bytes));
    }
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.streamed.contains(param.id) {
            return self.resident(param.id, param.transform_for_save().val());
        }
        let hollow = param.transform_for_save().val();
        let (shape, dtype) = (hollow.dims(), hollow.dtype());
        let length = shape.iter().product::<usize>() * dtype.size();
        let (streamed, param, joined) = (self.streamed.clone(), param.clone(), self.joined.clone());
        let (id, parts) = (param.id.val(), streamed.parts(param.id).len());
        let in_parts = parts > 1 && is_saved_as_it_is(&param);
        let read = move || {
            if in_parts {
                let part = |part| streamed.value_of_part(param.id, part).map_err(io);
                return joined.of((0..parts).map(part));
            }
            let value = streamed.value::<D>(param.id, &param.device().inner()).map_err(io)?;
            let value = value.ok_or_else(|| burn_pack::Error::IoError("a parameter is not in the store".into()))?;
            let filled = param.clone().map(|_| value);
            let saved = filled.transform_for_save();
            drop(filled); // the only other handle to the values, which would be copied
            Ok(saved.into_value().into_data().into_bytes())
        };
        self.tensors.push(Packed::deferred(self.place.join("."), dtype, shape, Some(id), length, read));
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        self.resident(param.id, param.transform_for_save().val());
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        self.resident(param.id, param.transform_for_save().val());
    }
}

/// Whether the values of a parameter have the same order in memory and in a checkpoint.
fn is_saved_as_it_is<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let mut shape = [1; D];
    let elements = (0..D.min(2)).fold(1, |elements, axis| {
        shape[axis] = axis + 2;
        elements * (axis + 2)
    });
    let probe = Tensor::<1, Int>::arange(0..elements as i64, &param.device().inner()).float().reshape(shape);
    let saved = param.clone().map(|_| probe.clone()).transform_for_save().into_value();
    saved.dims() == probe.dims() && saved.into_data() == probe.into_data()
}

/// A tensor in a file: its dtype, its shape, the id of its parameter, and its bytes, which are read when they are used.
type Filed = (DType, burn::tensor::Shape, Option<u64>, Bytes);

fn named((name, dtype, shape, id, bytes): (String, DType, burn::tensor::Shape, Option<u64>, Bytes)) -> (String, Filed) {
    (name, (dtype, shape, id, bytes))
}

/// Takes the tensors of a model from a file.
struct Load<'a> {
    streamed: &'a Streamed,
    tensors: BTreeMap<String, Filed>,
    place: Vec<String>,
    /// The ids of the parameters by those in the file.
    own: HashMap<u64, ParamId>,
    failure: Option<String>,
}

impl Load<'_> {
    /// The tensor of the file that has the place of a parameter with this id and this shape.
    fn find(&mut self, id: ParamId, expected: &[usize]) -> Result<(DType, Bytes), String> {
        let path = self.place.join(".");
        let (dtype, shape, old, bytes) = self.tensors.remove(&path).ok_or_else(|| format!("it has no {path}"))?;
        if shape.as_slice() != expected {
            return Err(format!("{path} is {:?}, expected {expected:?}", shape.as_slice()));
        }
        self.own.extend(old.map(|old| (old, id)));
        Ok((dtype, bytes))
    }

    fn take<const D: usize, K: Basic>(
        &mut self,
        id: ParamId,
        expected: [usize; D],
        device: &Device,
    ) -> Option<Tensor<D, K>> {
        match self.find(id, &expected) {
            Ok((dtype, bytes)) => {
                Some(Tensor::from_data(TensorData::from_bytes(bytes, expected, dtype), (device, dtype)))
            }
            Err(reason) => {
                self.failure.get_or_insert(reason);
                None
            }
        }
    }

    /// Writes the value of a parameter into the store, one part after the other.
    fn take_parts(&mut self, id: ParamId, expected: impl AsRef<[usize]>, own: DType) -> Result<(), String> {
        let (dtype, bytes) = self.find(id, expected.as_ref())?;
        let path = self.place.join(".");
        if dtype != own {
            return Err(format!("{path} is {dtype:?}, expected {own:?}"));
        }
        let row = bytes.len() / expected.as_ref()[0].max(1);
        for (part, rows) in self.streamed.parts(id).into_iter().enumerate() {
            let value = bytes.view(rows.start * row, rows.end * row);
            let value = value.map_err(|_| format!("{path} is too short"))?;
            self.streamed.write_value_of_part(id, part, &value).map_err(|e| e.to_string())?;
        }
        Ok(())
    }
}

impl ModuleMapper for Load<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.place.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.place.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, expected) = (param.id, param.transform_for_save().val().dims());
        let in_parts = self.streamed.parts(id).len() > 1 && is_saved_as_it_is(&param);
        let written = match in_parts {
            true => self.take_parts(id, expected, param.dtype()),
            false => {
                let Some(tensor) = self.take(id, expected, &param.device()) else { return param };
                let loaded = param.clone().transform_for_load(tensor, id);
                if !self.streamed.contains(id) {
                    return loaded;
                }
                self.streamed.write_value(id, loaded.val().inner()).map_err(|e| e.to_string())
            }
        };
        if let Err(reason) = written {
            self.failure.get_or_insert(reason);
        }
        param
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let (id, expected) = (param.id, param.transform_for_save().val().dims());
        match self.take(id, expected, &param.device()) {
            Some(tensor) => param.transform_for_load(tensor, id),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let (id, expected) = (param.id, param.transform_for_save().val().dims());
        match self.take(id, expected, &param.device()) {
            Some(tensor) => param.transform_for_load(tensor, id),
            None => param,
        }
    }
}
