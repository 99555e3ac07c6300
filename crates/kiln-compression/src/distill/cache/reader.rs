//! Reads stored outputs of a teacher, one record at a time.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::layout::{CacheLayout, Slot};
use crate::Error;
use crate::distill::teacher::{Tail, TopK};

/// A complete file of a teacher's outputs. Only the records that are asked for are read. [`TeacherCacheWriter`](crate::TeacherCacheWriter)
/// makes one.
///
/// A record holds the K largest outputs as logarithms of the probabilities at temperature 1, in f16. A probability p is off by at most
/// 2⁻¹¹ |ln p| p, so less than 2e-4. Probabilities at other temperatures follow from the same numbers; [`Tail`] says what the classes
/// that are not stored get. A record takes 4 K + 4 bytes, 6 K + 4 with more than 65,536 classes: 81 MB for K = 16 and the 1.2 million images
/// of ImageNet-1k.
#[derive(Debug)]
pub struct TeacherCache {
    path: PathBuf,
    file: Mutex<File>,
    layout: CacheLayout,
}

impl TeacherCache {
    /// Opens the file at `path` if it is of `source`.
    ///
    /// # Errors
    /// [`Error::Load`] for a file that cannot be read or is damaged, [`Error::OtherCache`] for one of another source.
    pub fn open(path: impl AsRef<Path>, source: &str) -> Result<Self, Error> {
        let path = path.as_ref();
        let load = |reason: String| Error::Load { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(|e| load(e.to_string()))?;
        let layout = CacheLayout::read(&mut file).map_err(load)?;
        if layout.source() != source {
            let (found, expected) = (format!("'{}'", layout.source()), format!("'{source}'"));
            return Err(Error::OtherCache { path: path.to_owned(), found, expected });
        }
        let length = file.metadata().map_err(|e| load(e.to_string()))?.len();
        match layout.size() {
            Some(size) if size == length => Ok(Self { path: path.to_owned(), file: Mutex::new(file), layout }),
            size => Err(load(format!("it has {length} bytes, expected {}", size.unwrap_or_default()))),
        }
    }

    /// The sizes.
    pub fn layout(&self) -> &CacheLayout {
        &self.layout
    }

    /// The outputs for `samples`, in this order, on `device`. Several threads may read.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a sample that the file does not have or no sample, [`Error::Load`] for a record that cannot be read or
    /// whose checksum is wrong.
    pub fn read(&self, samples: &[usize], device: &Device) -> Result<TopK, Error> {
        let load = |reason: String| Error::Load { path: self.path.clone(), reason };
        let shape = [samples.len(), self.layout.k()];
        check_samples(samples, &self.layout)?;
        let mut indices: Vec<i32> = Vec::with_capacity(shape[0] * shape[1]);
        let mut values: Vec<f32> = Vec::with_capacity(shape[0] * shape[1]);
        let mut record = vec![0; self.layout.record()];
        for sample in samples {
            {
                let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
                file.seek(SeekFrom::Start(self.layout.offset(*sample))).map_err(|e| load(e.to_string()))?;
                file.read_exact(&mut record).map_err(|e| load(e.to_string()))?;
            }
            let Slot::Row { classes, log_probabilities } = self.layout.decode(*sample, &record) else {
                return Err(load(format!("the record of sample {sample} is damaged")));
            };
            // The layout allows only classes that fit.
            indices.extend(classes.into_iter().map(|class| class as i32));
            values.extend(log_probabilities);
        }
        Ok(TopK {
            indices: Tensor::<2, Int>::from_data(TensorData::new(indices, shape), device),
            log_probabilities: Tensor::from_data(TensorData::new(values, shape), device),
            tail: Tail::default(),
        })
    }
}

/// Checks that there are samples, and that all are in the file.
pub(super) fn check_samples(samples: &[usize], layout: &CacheLayout) -> Result<(), Error> {
    let invalid = |what, value: String, expected| Err(Error::InvalidSetting { what, value, expected });
    if samples.is_empty() {
        return invalid("the number of samples", "0".into(), "at least 1");
    }
    match samples.iter().find(|sample| **sample >= layout.samples()) {
        Some(sample) => invalid("a sample", sample.to_string(), "less than the number of samples of the file"),
        None => Ok(()),
    }
}
