//! Answers of driver calls: the `CUresult` codes, their names and texts, and which of them poison a context.

use std::fmt;

/// A `CUresult`: 0 is success, everything else an error of the CUDA driver API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Code(pub u32);

/// The result of a driver operation: its value, or the code that the call answers.
pub(crate) type Answer<T = ()> = Result<T, Code>;

#[allow(missing_docs)] // the names are NVIDIA's and `text` explains each
impl Code {
    pub const SUCCESS: Self = Self(0);
    pub const INVALID_VALUE: Self = Self(1);
    pub const OUT_OF_MEMORY: Self = Self(2);
    pub const NOT_INITIALIZED: Self = Self(3);
    pub const NO_DEVICE: Self = Self(100);
    pub const INVALID_DEVICE: Self = Self(101);
    pub const INVALID_IMAGE: Self = Self(200);
    pub const INVALID_CONTEXT: Self = Self(201);
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    pub const UNSUPPORTED_LIMIT: Self = Self(215);
    pub const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    pub const INVALID_PTX: Self = Self(218);
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    pub const FILE_NOT_FOUND: Self = Self(301);
    pub const INVALID_HANDLE: Self = Self(400);
    pub const ILLEGAL_STATE: Self = Self(401);
    pub const NOT_FOUND: Self = Self(500);
    pub const NOT_READY: Self = Self(600);
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    pub const LAUNCH_OUT_OF_RESOURCES: Self = Self(701);
    pub const LAUNCH_TIMEOUT: Self = Self(702);
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    pub const MISALIGNED_ADDRESS: Self = Self(716);
    pub const LAUNCH_FAILED: Self = Self(719);
    pub const NOT_SUPPORTED: Self = Self(801);
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
}

impl Code {
    /// NVIDIA's name, such as `CUDA_ERROR_OUT_OF_MEMORY`; nothing for a number that names no error.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|row| row.1)
    }

    /// The driver's sentence for the code, such as `out of memory`.
    #[must_use]
    pub fn text(self) -> Option<&'static str> {
        self.row().map(|row| row.2)
    }

    /// Whether the error stays: after it, every call that needs the context answers the same code until the context
    /// is reset. The list is the driver API's "leaves the process in an inconsistent state", and the faults of hardware.
    #[must_use]
    pub fn is_sticky(self) -> bool {
        matches!(self.0, 214 | 220 | 700 | 702 | 709 | 710 | 714..=719 | 721 | 911)
    }

    /// Reads a code as a number (`700`), or by its name with or without `CUDA_ERROR_` (`ILLEGAL_ADDRESS`).
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return Some(Self(number));
        }
        let wanted = text.to_ascii_uppercase();
        let short = |name: &'static str| name.strip_prefix("CUDA_ERROR_").unwrap_or(name);
        ROWS.iter().find(|row| row.1 == wanted || short(row.1) == wanted).map(|row| Self(row.0))
    }

    fn row(self) -> Option<&'static (u32, &'static str, &'static str)> {
        ROWS.binary_search_by_key(&self.0, |row| row.0).ok().map(|at| &ROWS[at])
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

/// Number, name and text of each code, by number.
#[rustfmt::skip] // one code a line
const ROWS: &[(u32, &str, &str)] = &[
    (0, "CUDA_SUCCESS", "no error"),
    (1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"),
    (3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"),
    (4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"),
    (5, "CUDA_ERROR_PROFILER_DISABLED", "profiler disabled"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED", "profiler not initialized"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED", "profiler already started"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED", "profiler already stopped"),
    (34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "call requires newer driver"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL", "multicast resource full"),
    (100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"),
    (101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device not licensed"),
    (200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"),
    (201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", "context already current"),
    (205, "CUDA_ERROR_MAP_FAILED", "map failed"),
    (206, "CUDA_ERROR_UNMAP_FAILED", "unmap failed"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED", "array is mapped"),
    (208, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED", "already acquired"),
    (211, "CUDA_ERROR_NOT_MAPPED", "not mapped"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY", "not mapped as array"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER", "not mapped as pointer"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", "context already in use"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"),
    (218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT", "invalid OpenGL or DirectX context"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY", "unsupported exec affinity"),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC", "unsupported devside sync"),
    (226, "CUDA_ERROR_CONTAINED", "contained"),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION", "insufficient loader version"),
    (300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", "shared object init failed"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"),
    (400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"),
    (401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"),
    (402, "CUDA_ERROR_LOSSY_QUERY", "lossy query"),
    (500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"),
    (600, "CUDA_ERROR_NOT_READY", "device not ready"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING", "launch incompatible texturing"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"),
    (710, "CUDA_ERROR_ASSERT", "device-side assert triggered"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS", "too many peers"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE", "operation not supported on global/shared address space"),
    (718, "CUDA_ERROR_INVALID_PC", "invalid program counter"),
    (719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK", "tensor memory leak"),
    (800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"),
    (801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "compat not supported on device"),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "mps connection failed"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE", "mps rpc failure"),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "mps server not ready"),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", "mps max clients reached"),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", "mps max connections reached"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED", "mps client terminated"),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED", "cdp not supported"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH", "cdp version mismatch"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"),
    (907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"),
    (909, "CUDA_ERROR_TIMEOUT", "wait operation timed out"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update included changes that an instantiated graph cannot take"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE", "an async error has occurred in external entity outside of CUDA"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED", "function not loaded"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE", "invalid resource type"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "invalid resource configuration"),
    (916, "CUDA_ERROR_KEY_ROTATION", "key rotation"),
    (917, "CUDA_ERROR_STREAM_DETACHED", "stream detached"),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE", "graph recapture failure"),
    (919, "CUDA_ERROR_FABRIC_NOT_READY", "fabric not ready"),
    (999, "CUDA_ERROR_UNKNOWN", "unknown error"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_so_that_the_search_finds_each() {
        for row in ROWS {
            assert_eq!(Code(row.0).name(), Some(row.1));
            assert_eq!(Code::parse(row.1), Some(Code(row.0)));
            assert!(!row.2.is_empty());
        }
    }

    #[test]
    fn names_numbers_and_nonsense() {
        assert_eq!(Code::parse("ILLEGAL_ADDRESS"), Some(Code::ILLEGAL_ADDRESS));
        assert_eq!(Code::parse("cuda_error_out_of_memory"), Some(Code::OUT_OF_MEMORY));
        assert_eq!(Code::parse("2"), Some(Code::OUT_OF_MEMORY));
        assert_eq!(Code::parse("no such code"), None);
        assert_eq!(Code(12_345).name(), None);
        assert_eq!(Code::ILLEGAL_ADDRESS.to_string(), "CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    }

    #[test]
    fn only_faults_of_the_device_stick() {
        for code in [214, 700, 702, 710, 716, 719] {
            assert!(Code(code).is_sticky(), "{code}");
        }
        for code in [0, 1, 2, 201, 218, 400, 600, 701, 704, 801, 900] {
            assert!(!Code(code).is_sticky(), "{code}");
        }
    }
}
