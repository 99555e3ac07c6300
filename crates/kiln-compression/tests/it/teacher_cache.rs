//! Files of a teacher's outputs.

use std::path::Path;

use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use kiln_compression::{CacheLayout, DistillationLoss, Error, TeacherCache, TeacherCacheWriter, TopK};

const SOURCE: &str = "teacher 1, data 2";

fn layout(classes: usize) -> CacheLayout {
    CacheLayout::new(10, classes, 4, SOURCE).unwrap()
}

fn logits(classes: usize) -> Tensor<2> {
    Tensor::random([10, classes], Distribution::Normal(0.0, 2.0), &Device::flex())
}

/// Writes the rows of `samples`.
fn write(writer: &mut TeacherCacheWriter, logits: &Tensor<2>, samples: &[usize]) -> Result<(), Error> {
    let chosen: Vec<i32> = samples.iter().map(|sample| *sample as i32).collect();
    let rows = logits.clone().select(0, Tensor::<1, Int>::from_data(chosen.as_slice(), &logits.device()));
    writer.write(samples, TopK::of(rows, 4).unwrap())
}

fn complete(path: &Path, logits: &Tensor<2>) -> TeacherCache {
    let mut writer = TeacherCacheWriter::open(path, layout(logits.dims()[1])).unwrap();
    write(&mut writer, logits, &(0..10).collect::<Vec<_>>()).unwrap();
    writer.finish().unwrap()
}

#[test]
fn stored_outputs_are_the_teachers_up_to_f16() {
    let directory = tempfile::tempdir().unwrap();
    for classes in [5, 300, 70_000] {
        let logits = logits(classes);
        let path = directory.path().join(classes.to_string());
        let cache = complete(&path, &logits);
        assert_eq!(cache.layout(), &layout(classes));
        let bytes = if classes > 65_536 { 6 } else { 4 } * 4 + 4;
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 36 + SOURCE.len() as u64 + 10 * bytes);
        let order = [3usize, 9, 0, 3];
        let chosen = Tensor::<1, Int>::from_data([3, 9, 0, 3], &Device::flex());
        let expected = TopK::of(logits.select(0, chosen), 4).unwrap();
        let found = cache.read(&order, &Device::flex()).unwrap();
        assert_eq!(values(&found.indices.into_data()), values(&expected.indices.into_data()));
        let probabilities = |top: Tensor<2>| top.exp().into_data().iter::<f32>().collect::<Vec<_>>();
        let (expected, found) = (probabilities(expected.log_probabilities), probabilities(found.log_probabilities));
        for (expected, found) in expected.iter().zip(&found) {
            assert!((expected - found).abs() <= expected * expected.ln().abs() / 2048.0 + 1e-7, "{expected} {found}");
        }
    }
}

fn values(data: &TensorData) -> Vec<i64> {
    data.iter::<i64>().collect()
}

#[test]
fn a_loss_from_the_file_is_near_the_loss_from_the_teacher() {
    let directory = tempfile::tempdir().unwrap();
    let teacher = logits(50);
    let cache = complete(&directory.path().join("cache"), &teacher);
    let all: Vec<usize> = (0..10).collect();
    let stored = cache.read(&all, &Device::flex()).unwrap();
    let (loss, student) = (DistillationLoss::new(2.0).unwrap(), logits(50));
    let value = |teacher: TopK| loss.forward(student.clone(), teacher).unwrap().into_scalar::<f32>();
    let (exact, stored) = (value(TopK::of(teacher, 4).unwrap()), value(stored));
    assert!((exact - stored).abs() < 1e-3 * exact, "{exact} {stored}");
}

#[test]
fn an_interrupted_run_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let (path, logits) = (directory.path().join("cache"), logits(50));
    let mut writer = TeacherCacheWriter::open(&path, layout(50)).unwrap();
    assert_eq!(writer.missing().count(), 10);
    write(&mut writer, &logits, &[7, 2, 3]).unwrap();
    assert!(matches!(TeacherCacheWriter::open(&path, layout(50)), Err(Error::Save { .. })), "a second writer");
    drop(writer);
    assert!(!path.exists());
    assert!(matches!(TeacherCache::open(&path, SOURCE), Err(Error::Load { .. })));

    // The write of sample 3 was torn.
    let partial = directory.path().join("cache.partial");
    let mut bytes = std::fs::read(&partial).unwrap();
    let record = 36 + SOURCE.len() + 3 * 20;
    bytes[record + 11..record + 20].fill(0);
    std::fs::write(&partial, bytes).unwrap();

    for other in [
        CacheLayout::new(10, 50, 4, "teacher 2, data 2").unwrap(),
        CacheLayout::new(10, 50, 5, SOURCE).unwrap(),
        CacheLayout::new(11, 50, 4, SOURCE).unwrap(),
    ] {
        assert!(matches!(TeacherCacheWriter::open(&path, other), Err(Error::OtherCache { .. })));
    }
    let mut writer = TeacherCacheWriter::open(&path, layout(50)).unwrap();
    assert_eq!(writer.missing().collect::<Vec<_>>(), [0, 1, 3, 4, 5, 6, 8, 9]);
    write(&mut writer, &logits, &[0, 1, 4, 5, 6, 8, 9]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::Save { reason, .. }) if reason.contains("1 of 10")));
    let mut writer = TeacherCacheWriter::open(&path, layout(50)).unwrap();
    write(&mut writer, &logits, &[3]).unwrap();
    writer.finish().unwrap();
    assert!(!partial.exists());
    assert!(matches!(TeacherCacheWriter::open(&path, layout(50)), Err(Error::Save { .. })));

    let other = directory.path().join("other");
    complete(&other, &logits);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&other).unwrap());
}

#[test]
fn damaged_files_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cache");
    complete(&path, &logits(50));
    assert!(matches!(TeacherCache::open(&path, "teacher 2, data 2"), Err(Error::OtherCache { .. })));
    let whole = std::fs::read(&path).unwrap();
    let all: Vec<usize> = (0..10).collect();
    let read = || TeacherCache::open(&path, SOURCE)?.read(&all, &Device::flex());
    assert!(read().is_ok());
    for length in 0..whole.len() {
        std::fs::write(&path, &whole[..length]).unwrap();
        assert!(matches!(read(), Err(Error::Load { .. })), "{length}");
    }
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(read(), Err(Error::Load { .. })), "{at}");
    }
    let longer = [whole.as_slice(), &[0]].concat();
    std::fs::write(&path, longer).unwrap();
    assert!(matches!(read(), Err(Error::Load { .. })));
}

#[test]
fn what_is_not_in_the_layout_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let (path, logits) = (directory.path().join("cache"), logits(50));
    let mut writer = TeacherCacheWriter::open(&path, layout(50)).unwrap();
    let top = |rows, k| TopK::of(logits.clone().narrow(0, 0, rows), k).unwrap();
    assert!(matches!(writer.write(&[10], top(1, 4)), Err(Error::InvalidSetting { .. })));
    assert!(matches!(writer.write(&[], top(1, 4)), Err(Error::InvalidSetting { .. })));
    assert!(matches!(writer.write(&[1], top(2, 4)), Err(Error::Shape { .. })));
    assert!(matches!(writer.write(&[1], top(1, 3)), Err(Error::Shape { .. })));
    let nan = TopK { log_probabilities: Tensor::full([1, 4], f32::NAN, &Device::flex()), ..top(1, 4) };
    assert!(matches!(writer.write(&[1], nan), Err(Error::Save { .. })));
    let outside = TopK { indices: Tensor::from_data([[0, 1, 2, 50]], &Device::flex()), ..top(1, 4) };
    assert!(matches!(writer.write(&[1], outside), Err(Error::Save { .. })));
    assert_eq!(writer.missing().count(), 10);
    drop(writer);
    std::fs::remove_file(directory.path().join("cache.partial")).unwrap();
    let cache = complete(&path, &logits);
    assert!(matches!(cache.read(&[10], &Device::flex()), Err(Error::InvalidSetting { .. })));
    assert!(matches!(cache.read(&[], &Device::flex()), Err(Error::InvalidSetting { .. })));
}
