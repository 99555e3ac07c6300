//! The extension traits of operations on the backends without gradients.

/// Implements an operation's extension trait for the backends without gradients. The bodies call the operation's kernels.
///
/// With the trait of its kernels, the operation also runs on burn's CubeCL runtimes (CUDA, CPU, ..), for which this crate has no kernels.
/// There the trait's default bodies are used, which the operation's `composed.rs` implements in the backend's own operations. To add this
/// to an operation:
/// 1. Write `composed.rs` beside `flex.rs`. It has the same functions, generic over `B: Backend`, in the arithmetic of `crate::composed`,
///    names its temporary memory in its first comment, and has unit tests against the Flex kernels (`crate::composed::tests`).
/// 2. Call these functions in default bodies of the kernels' trait (`super::composed::forward::<Self>(..)`).
/// 3. Add `Cube: cfg(feature = "cube")` to the list of `backend_extension`, and the kernels' trait to this macro's first argument.
macro_rules! without_gradients {
    ($operation:ident { $($body:tt)* }) => {
        #[cfg(feature = "flex")]
        impl $operation for burn::backend::Flex { $($body)* }
        impl $operation for burn::backend::Capture { $($body)* }
    };
    ($operation:ident, $kernels:ident { $($body:tt)* }) => {
        $crate::graph::without_gradients!($operation { $($body)* });
        // The type is `Fusion<CubeBackend>` or `CubeBackend`, depending on burn's features: burn may fuse the operations of the default
        // bodies.
        #[cfg(feature = "cube")]
        impl $kernels for burn::backend::Cube {}
        #[cfg(feature = "cube")]
        impl $operation for burn::backend::Cube { $($body)* }
    };
}
pub(crate) use without_gradients;
