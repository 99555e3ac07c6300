//! Writes outputs of a teacher, in any order and over several runs.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use burn::tensor::DType;

use super::layout::{CacheLayout, Slot};
use super::reader::{TeacherCache, check_samples};
use crate::Error;
use crate::atomic;
use crate::distill::teacher::TopK;

/// Fills a file of a teacher's outputs. Until [`finish`](Self::finish) the file is called `<path>.partial`; a run that was interrupted goes
/// on with what is [`missing`](Self::missing).
///
/// ```
/// use burn::tensor::{Device, Distribution, Tensor};
/// use kiln_compression::{CacheLayout, DistillationLoss, TeacherCacheWriter, TopK};
///
/// let device = Device::flex();
/// let directory = tempfile::tempdir()?;
/// // 6 samples of 100 classes, of which 4 are stored.
/// let layout = CacheLayout::new(6, 100, 4, "resnet50 3f7e, images of train.csv 91ab")?;
/// let mut writer = TeacherCacheWriter::open(directory.path().join("teacher.topk"), layout)?;
/// let missing: Vec<usize> = writer.missing().collect();
/// for samples in missing.chunks(2) {
///     let teacher_logits = Tensor::<2>::random([samples.len(), 100], Distribution::Default, &device);
///     writer.write(samples, TopK::of(teacher_logits, 4)?)?;
/// }
/// let cache = writer.finish()?;
///
/// let teacher = cache.read(&[5, 0], &device)?;
/// let student_logits = Tensor::<2>::random([2, 100], Distribution::Default, &device);
/// let loss = DistillationLoss::new(2.0)?.forward(student_logits, teacher)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TeacherCacheWriter {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    layout: CacheLayout,
    written: Vec<bool>,
}

impl TeacherCacheWriter {
    /// Begins the file at `path`, or goes on with an incomplete one. Records that were not written completely count as missing.
    ///
    /// # Errors
    /// [`Error::OtherCache`] when the incomplete file has another layout; [`Error::Load`] when it is damaged; [`Error::Save`] when it cannot
    /// be written, when another writer has it open, and when `path` is complete.
    pub fn open(path: impl AsRef<Path>, layout: CacheLayout) -> Result<Self, Error> {
        let path = path.as_ref().to_owned();
        let save = |e: std::io::Error| Error::Save { path: path.clone(), reason: e.to_string() };
        if path.exists() {
            return Err(Error::Save { path, reason: "it is complete; remove it to begin anew".into() });
        }
        let mut name: OsString = path.clone().into();
        name.push(".partial");
        let partial = PathBuf::from(name);
        if !partial.exists() {
            // Complete with its header and length before it gets its name.
            let mut file = atomic::beside(&path).map_err(save)?;
            file.write_all(&layout.header()).map_err(save)?;
            file.as_file().set_len(layout.size().unwrap_or_default()).map_err(save)?;
            file.persist_noclobber(&partial).map_err(|e| save(e.error))?;
        }
        let mut file = OpenOptions::new().read(true).write(true).open(&partial).map_err(save)?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::Save { path, reason: "another writer has it open".into() });
        }
        let written = written(&mut file, &partial, &layout)?;
        Ok(Self { path, partial, file, layout, written })
    }

    /// The samples that have no record yet, in rising order.
    pub fn missing(&self) -> impl Iterator<Item = usize> {
        self.written.iter().enumerate().filter(|(_, written)| !**written).map(|(sample, _)| sample)
    }

    /// Writes the outputs for `samples`, in their order. Records that exist are replaced.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] for a sample that the file does not have or no sample; [`Error::Shape`] unless `top_k` has a row for each
    /// sample and the layout's K columns; [`Error::Save`] when a value is no number, a class is out of range, the device cannot give the
    /// values, or the file cannot be written.
    pub fn write(&mut self, samples: &[usize], top_k: TopK) -> Result<(), Error> {
        let save = |reason: String| Error::Save { path: self.partial.clone(), reason };
        check_samples(samples, &self.layout)?;
        let k = self.layout.k();
        for (what, found) in
            [("the teacher's indices", top_k.indices.dims()), ("the teacher's values", top_k.log_probabilities.dims())]
        {
            if found != [samples.len(), k] {
                let expected = format!("[{}, {k}]", samples.len());
                return Err(Error::Shape { what, found: found.to_vec(), expected });
            }
        }
        let indices = top_k.indices.try_into_data().map_err(|e| save(e.to_string()))?;
        let values = top_k.log_probabilities.try_into_data_dtype(DType::F32).map_err(|e| save(e.to_string()))?;
        let indices: Vec<i64> = indices.iter::<i64>().collect();
        let values: Vec<f32> = values.iter::<f32>().collect();
        for ((sample, indices), values) in samples.iter().zip(indices.chunks(k)).zip(values.chunks(k)) {
            let in_range = |class: &&i64| usize::try_from(**class).is_ok_and(|class| class < self.layout.classes());
            let classes: Vec<u32> = indices.iter().filter(in_range).map(|class| *class as u32).collect();
            if classes.len() != k || values.iter().any(|value| value.is_nan()) {
                return Err(save(format!("sample {sample} has a value that is no number, or a class out of range")));
            }
            let record = self.layout.encode(*sample, &classes, values);
            self.file.seek(SeekFrom::Start(self.layout.offset(*sample))).map_err(|e| save(e.to_string()))?;
            self.file.write_all(&record).map_err(|e| save(e.to_string()))?;
            self.written[*sample] = true;
        }
        Ok(())
    }

    /// Gives the file its name, when it is on the disk and no sample is missing.
    ///
    /// # Errors
    /// [`Error::Save`] when samples are missing or the file cannot be renamed.
    pub fn finish(self) -> Result<TeacherCache, Error> {
        let save = |reason: String| Error::Save { path: self.path.clone(), reason };
        if let Some(first) = self.missing().next() {
            let (missing, samples) = (self.missing().count(), self.layout.samples());
            return Err(save(format!("{missing} of {samples} samples are missing, the first is {first}")));
        }
        self.file.sync_all().map_err(|e| save(e.to_string()))?;
        std::fs::rename(&self.partial, &self.path).map_err(|e| save(e.to_string()))?;
        atomic::keep_name(&self.path).map_err(|e| save(e.to_string()))?;
        TeacherCache::open(&self.path, self.layout.source())
    }
}

/// Which samples have a record in an incomplete file of this layout.
fn written(file: &mut File, path: &Path, layout: &CacheLayout) -> Result<Vec<bool>, Error> {
    let load = |reason: String| Error::Load { path: path.to_owned(), reason };
    let found = CacheLayout::read(file).map_err(load)?;
    if found != *layout {
        let (found, expected) = (format!("{found:?}"), format!("{layout:?}"));
        return Err(Error::OtherCache { path: path.to_owned(), found, expected });
    }
    let length = file.metadata().map_err(|e| load(e.to_string()))?.len();
    if Some(length) != layout.size() {
        return Err(load(format!("it has {length} bytes, expected {}", layout.size().unwrap_or_default())));
    }
    file.seek(SeekFrom::Start(layout.offset(0))).map_err(|e| load(e.to_string()))?;
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let mut record = vec![0; layout.record()];
    (0..layout.samples())
        .map(|sample| {
            reader.read_exact(&mut record).map_err(|e| load(e.to_string()))?;
            Ok(matches!(layout.decode(sample, &record), Slot::Row { .. }))
        })
        .collect()
}
