//! Faults on order: which driver operation fails, at which count, with which code.

use std::str::FromStr;

use super::code::Code;

/// An operation that can be made to fail. Each is counted by device from the moment the fault is armed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// `alloc`: device memory (`cuMemAlloc`, `cuMemAllocAsync`, pools, managed).
    Alloc,
    /// `alloc-host`: pinned memory (`cuMemAllocHost`, `cuMemHostAlloc`).
    AllocHost,
    /// `free`: device memory given back.
    Free,
    /// `info`: `cuMemGetInfo`.
    Info,
    /// `h2d`: copies from the host to a device.
    HostToDevice,
    /// `d2h`: copies from a device to the host.
    DeviceToHost,
    /// `d2d`: copies inside one device.
    DeviceToDevice,
    /// `p2p`: copies from one device to another, counted on the receiver.
    Peer,
    /// `memset`.
    Memset,
    /// `stream`: creation of a stream.
    StreamCreate,
    /// `sync`: `cuStreamSynchronize` and `cuCtxSynchronize`.
    Synchronise,
    /// `wait`: `cuStreamWaitEvent`.
    StreamWait,
    /// `event`: creation of an event.
    EventCreate,
    /// `record`: `cuEventRecord`.
    EventRecord,
    /// `event-sync`: `cuEventSynchronize`.
    EventSynchronise,
    /// `module`: loading of a module.
    ModuleLoad,
    /// `function`: `cuFuncSetAttribute`.
    FunctionAttribute,
    /// `launch`: `cuLaunchKernel`.
    Launch,
    /// `graph`: `cuGraphLaunch`.
    GraphLaunch,
}

const NAMES: [(&str, Operation); 19] = [
    ("alloc", Operation::Alloc),
    ("alloc-host", Operation::AllocHost),
    ("free", Operation::Free),
    ("info", Operation::Info),
    ("h2d", Operation::HostToDevice),
    ("d2h", Operation::DeviceToHost),
    ("d2d", Operation::DeviceToDevice),
    ("p2p", Operation::Peer),
    ("memset", Operation::Memset),
    ("stream", Operation::StreamCreate),
    ("sync", Operation::Synchronise),
    ("wait", Operation::StreamWait),
    ("event", Operation::EventCreate),
    ("record", Operation::EventRecord),
    ("event-sync", Operation::EventSynchronise),
    ("module", Operation::ModuleLoad),
    ("function", Operation::FunctionAttribute),
    ("launch", Operation::Launch),
    ("graph", Operation::GraphLaunch),
];

impl Operation {
    /// The name used in settings and in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, operation)| *operation == self).map_or("?", |(name, _)| name)
    }
}

/// Why a text orders no fault.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` orders no fault: {what}; written as operation[@device]:first[xCOUNT or +]:code, such as `alloc:5:OUT_OF_MEMORY`"
)]
pub struct FaultError {
    text: String,
    what: &'static str,
}

/// One fault on order: the `first`th operation from now fails, and maybe some after it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The operation that fails.
    pub operation: Operation,
    /// On which device; on each (counted together) where absent.
    pub device: Option<usize>,
    /// The first operation that fails, from 1.
    pub first: u64,
    /// How many fail from there on; `u64::MAX` for all.
    pub count: u64,
    /// The code that the call answers. A sticky code poisons the context too.
    pub code: Code,
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let error = |what| FaultError { text: text.to_owned(), what };
        let mut parts = text.trim().split(':');
        let (Some(what), Some(when), Some(code), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(error("it does not have three parts"));
        };
        let (name, device) = match what.split_once('@') {
            Some((name, device)) => (name, Some(device.parse().map_err(|_| error("the device is not a number"))?)),
            None => (what, None),
        };
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let operation = known.ok_or_else(|| error("the operation is not known"))?.1;
        let number = |text: &str| text.parse::<u64>().ok().filter(|number| *number > 0);
        let bad_count = || error("the count is not a number from 1");
        let (first, count) = if let Some(first) = when.strip_suffix('+') {
            (number(first).ok_or_else(bad_count)?, u64::MAX)
        } else if let Some((first, count)) = when.split_once('x') {
            (number(first).ok_or_else(bad_count)?, number(count).ok_or_else(bad_count)?)
        } else {
            (number(when).ok_or_else(bad_count)?, 1)
        };
        let code =
            Code::parse(code).filter(|code| *code != Code::SUCCESS).ok_or_else(|| error("the code is not known"))?;
        Ok(Self { operation, device, first, count, code })
    }
}

/// Reads faults separated by commas.
pub(crate) fn parse_faults(text: &str) -> Result<Vec<Fault>, FaultError> {
    text.split(',').filter(|part| !part.trim().is_empty()).map(str::parse).collect()
}

/// The faults on order and how far each has counted.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    armed: Vec<(Fault, u64)>,
}

impl Faults {
    pub(crate) fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self { armed: faults.into_iter().map(|fault| (fault, 0)).collect() }
    }

    /// Orders one more fault; its count starts now.
    pub(crate) fn arm(&mut self, fault: Fault) {
        self.armed.push((fault, 0));
    }

    /// Drops every fault that has not happened yet; gives how many there were.
    pub(crate) fn disarm(&mut self) -> usize {
        let before = self.pending();
        self.armed.clear();
        before
    }

    /// Faults that are still to come.
    pub(crate) fn pending(&self) -> usize {
        self.armed.iter().filter(|(fault, seen)| *seen < fault.first.saturating_add(fault.count - 1)).count()
    }

    /// Counts one `operation` on `device` and gives the code that it must fail with, if any.
    pub(crate) fn hit(&mut self, operation: Operation, device: usize) -> Option<Code> {
        let mut code = None;
        for (fault, seen) in &mut self.armed {
            if fault.operation == operation && fault.device.is_none_or(|wanted| wanted == device) {
                *seen += 1;
                if *seen >= fault.first && *seen - fault.first < fault.count {
                    code = code.or(Some(fault.code));
                }
            }
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(faults: &str, operations: &[(Operation, usize)]) -> Vec<u32> {
        let mut faults = Faults::new(parse_faults(faults).expect("faults"));
        operations.iter().map(|(operation, device)| faults.hit(*operation, *device).map_or(0, |code| code.0)).collect()
    }

    #[test]
    fn the_nth_operation_fails_once() {
        let alloc = [(Operation::Alloc, 0); 5];
        assert_eq!(codes("alloc:3:2", &alloc), [0, 0, 2, 0, 0]);
        assert_eq!(codes("alloc:2x2:OUT_OF_MEMORY", &alloc), [0, 2, 2, 0, 0]);
        assert_eq!(codes("alloc:4+:2", &alloc), [0, 0, 0, 2, 2]);
        assert_eq!(codes("launch:1:700", &alloc), [0; 5]);
    }

    #[test]
    fn devices_count_apart_where_one_is_named() {
        let operations = [(Operation::Launch, 0), (Operation::Launch, 1), (Operation::Launch, 1)];
        assert_eq!(codes("launch@1:2:719", &operations), [0, 0, 719]);
        assert_eq!(codes("launch:2:719", &operations), [0, 719, 0]);
        assert_eq!(codes("launch@0:1:700,launch:3:719", &operations), [700, 0, 719]);
    }

    #[test]
    fn pending_faults_are_counted_and_disarmed() {
        let mut faults = Faults::new(parse_faults("sync:1:719, event:2:2,").expect("faults"));
        assert_eq!(faults.pending(), 2);
        assert_eq!(faults.hit(Operation::Synchronise, 0), Some(Code::LAUNCH_FAILED));
        assert_eq!(faults.pending(), 1);
        assert_eq!(faults.disarm(), 1);
        assert_eq!(faults.hit(Operation::EventCreate, 0), None);
        assert_eq!(faults.hit(Operation::EventCreate, 0), None);
    }

    #[test]
    fn nonsense_is_refused_with_what_would_be_accepted() {
        for text in
            ["alloc", "alloc:0:2", "alloc:x:2", "malloc:1:2", "alloc:1:0", "alloc:1:NOPE", "alloc@a:1:2", "a:1:2:3"]
        {
            let error = text.parse::<Fault>().expect_err(text);
            assert!(error.to_string().contains("alloc:5:OUT_OF_MEMORY"), "{error}");
        }
    }

    #[test]
    fn every_operation_has_a_name_that_reads_back() {
        for (name, operation) in NAMES {
            assert_eq!(operation.name(), name);
            assert_eq!(format!("{name}:1:1").parse::<Fault>().expect(name).operation, operation);
        }
    }
}
