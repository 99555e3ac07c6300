//! The 8-bit samples of a batch, on the host and perhaps on a device too.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// The dtype of bytes on a device: U8, or I32 on one without it, as with WGSL.
pub(crate) fn byte_dtype(device: &Device) -> DType {
    if device.supports_dtype(DType::U8) { DType::U8 } else { DType::I32 }
}

/// Samples `[B, C, H, W]` of 8 bits on the host, and on a device too once they were
/// [uploaded](crate::ImageBatch::upload). Reads as a slice of bytes.
///
/// The bytes stay on the host until the batch is dropped, so that a failed copy to the device can be repeated.
#[derive(Clone)]
pub struct Pixels {
    bytes: Arc<Vec<u8>>,
    part: Range<usize>,
    uploaded: Option<Tensor<4, Int>>,
}

impl Pixels {
    /// Images `images` of `shape`, sharing the bytes.
    pub(crate) fn slice(&self, images: Range<usize>, [_, c, h, w]: [usize; 4]) -> Self {
        let image = c * h * w;
        let part = self.part.start + images.start * image..self.part.start + images.end * image;
        let uploaded = self.uploaded.clone().map(|tensor| tensor.slice([images, 0..c, 0..h, 0..w]));
        Self { bytes: self.bytes.clone(), part, uploaded }
    }

    /// The bytes on the host, to be changed. The copy on a device is dropped, because it would differ.
    pub(super) fn host_mut(&mut self) -> &mut [u8] {
        self.uploaded = None;
        &mut Arc::make_mut(&mut self.bytes)[self.part.clone()]
    }

    /// The copy on `device`, made now if there is none.
    pub(crate) fn on(&self, shape: [usize; 4], device: &Device) -> Tensor<4, Int> {
        match &self.uploaded {
            Some(tensor) if tensor.device() == *device => tensor.clone(),
            _ => Tensor::from_data(TensorData::new(self.to_vec(), shape), (device, byte_dtype(device))),
        }
    }

    /// Copies to `device`, through pinned memory where the backend supports it, and waits for the copy. A failed copy is
    /// dropped; [`on`](Self::on) tries again, when the device may have more free memory.
    pub(crate) fn upload(&mut self, shape: [usize; 4], device: &Device) {
        let mut data = TensorData::new(self.to_vec(), shape);
        device.staging(std::iter::once(&mut data));
        let tensor = Tensor::from_data(data, (device, byte_dtype(device)));
        // Without memory for the copy the device still returns a tensor, and synchronising reports no error. Reading does, and
        // waits for this thread's work alone.
        let first = tensor.clone().slice(shape.map(|size| 0..size.min(1)));
        match first.try_into_data() {
            Ok(_) => self.uploaded = Some(tensor),
            Err(error) => tracing::debug!("a batch could not be copied to the device ahead of its step: {error}"),
        }
    }

    /// Whether there is a copy on a device.
    pub fn is_uploaded(&self) -> bool {
        self.uploaded.is_some()
    }
}

impl From<Vec<u8>> for Pixels {
    fn from(bytes: Vec<u8>) -> Self {
        Self { part: 0..bytes.len(), bytes: Arc::new(bytes), uploaded: None }
    }
}

impl Deref for Pixels {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.part.clone()]
    }
}

impl PartialEq for Pixels {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Pixels {}

impl fmt::Debug for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes{}", self.len(), if self.is_uploaded() { ", also on a device" } else { "" })
    }
}
