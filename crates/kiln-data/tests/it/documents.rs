//! Documents of different lengths: batches without padding on the host, and with a mask on a device.
// B batch, T time

use burn::tensor::{Device, TensorData};
use kiln_data::{BatchPlan, DocumentBatch, Documents, TokenBatch, TokenFileWriter};
use proptest::prelude::*;
use tempfile::tempdir;

const PADDING: u32 = 999;

fn plan(ids: Vec<usize>) -> BatchPlan {
    BatchPlan { epoch: 0, index: 0, ids }
}

fn documents() -> impl Strategy<Value = Vec<Vec<u32>>> {
    prop::collection::vec(prop::collection::vec(0u32..PADDING, 2..20), 1..12)
}

/// Row by row: inputs, targets, and which of them are tokens.
fn host(batch: &DocumentBatch) -> [Vec<i64>; 3] {
    let tensors = batch.to_device(PADDING, &Device::flex());
    assert_eq!([tensors.inputs.dims(), tensors.targets.dims(), tensors.mask.dims()], [batch.shape(); 3]);
    let numbers = |data: TensorData| data.iter::<i64>().collect::<Vec<_>>();
    [tensors.inputs.into_data(), tensors.targets.into_data(), tensors.mask.int().into_data()].map(numbers)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))] // each may flush a file to the disk
    #[test]
    fn rows_are_documents_and_the_rest_is_masked(
        documents in documents(), ids in prop::collection::vec(any::<prop::sample::Index>(), 1..9), from_file: bool,
    ) {
        let folder = tempdir().unwrap();
        let set = if from_file {
            let mut writer = TokenFileWriter::create(folder.path().join("tokens"), PADDING as usize).unwrap();
            documents.iter().for_each(|document| writer.write(document).unwrap());
            Documents::from_file(writer.finish().unwrap(), documents.iter().map(Vec::len)).unwrap()
        } else {
            Documents::new(documents.clone()).unwrap()
        };
        prop_assert_eq!(set.lengths().to_vec(), documents.iter().map(|document| document.len() as u32).collect::<Vec<_>>());
        let ids: Vec<usize> = ids.iter().map(|id| id.index(set.len())).collect();
        let batch = DocumentBatch::load(&set, &plan(ids.clone())).unwrap();
        let [b, t] = batch.shape();
        prop_assert_eq!((b, batch.len(), &batch.ids), (ids.len(), ids.len(), &ids));
        prop_assert_eq!(t + 1, ids.iter().map(|id| documents[*id].len()).max().unwrap());
        let [inputs, targets, mask] = host(&batch);
        for (row, id) in ids.iter().enumerate() {
            for column in 0..t {
                let (at, document) = (row * t + column, &documents[*id]);
                let id = |column: usize| i64::from(document.get(column).copied().unwrap_or(PADDING));
                let real = column + 1 < document.len();
                let expected = if real { [id(column), id(column + 1), 1] } else { [i64::from(PADDING), i64::from(PADDING), 0] };
                prop_assert_eq!([inputs[at], targets[at], mask[at]], expected);
            }
        }
        prop_assert_eq!(batch.targets() as i64, mask.iter().sum::<i64>());

        // Parts are batches of their own that are padded as the whole.
        let cut = ids.len() / 2;
        for part in [0..cut, cut..ids.len()] {
            let expected = DocumentBatch::load(&set, &plan(ids[part.clone()].to_vec())).unwrap();
            prop_assert_eq!(batch.slice(part), DocumentBatch { padded: batch.padded, ..expected });
        }
    }
}

/// Documents, and whether each of their tokens is learned.
fn marked() -> impl Strategy<Value = Vec<Vec<(u32, bool)>>> {
    prop::collection::vec(prop::collection::vec((0u32..PADDING, any::<bool>()), 2..20), 1..12)
}

proptest! {
    #[test]
    fn only_learned_tokens_are_targets(documents in marked(), cut in 2u32..25) {
        let ids = documents.iter().map(|document| document.iter().map(|(id, _)| *id).collect());
        // Each learned token is a range of its own.
        let ranges = documents.iter().map(|document| {
            (0u32..).zip(document).filter(|(_, (_, learned))| *learned).map(|(at, _)| at..at + 1).collect()
        });
        let set = Documents::new(ids).unwrap().with_learned(ranges).unwrap().cut_to(cut).unwrap();
        let batch = DocumentBatch::load(&set, &plan((0..set.len()).collect())).unwrap();
        let [_, t] = batch.shape();
        let [inputs, targets, mask] = host(&batch);
        let (of_loss, ignoring) = batch.to_device_ignoring(-100, &Device::flex());
        let [of_loss, ignoring] = [of_loss, ignoring].map(|ids| ids.into_data().iter::<i64>().collect::<Vec<_>>());
        let mut learned = 0;
        for (row, document) in documents.iter().enumerate() {
            for column in 0..t {
                let (at, next) = (row * t + column, document.get(column + 1).filter(|_| column + 1 < cut as usize));
                let target = next.filter(|(_, learned)| *learned).map(|(id, _)| i64::from(*id));
                learned += usize::from(target.is_some());
                let expected = [target.unwrap_or(i64::from(PADDING)), i64::from(target.is_some()), target.unwrap_or(-100)];
                prop_assert_eq!([targets[at], mask[at], ignoring[at]], expected);
                let input = next.map_or([i64::from(PADDING), 0], |_| [i64::from(document[column].0); 2]);
                prop_assert_eq!([inputs[at], of_loss[at]], input);
            }
        }
        prop_assert_eq!(batch.targets(), learned);
        let batch = TokenBatch::from(batch);
        prop_assert_eq!((batch.targets(), batch.target_ids().len(), batch.learns_all()), (learned, learned, false));
        // Documents with nothing to learn are left out, and the others are as they were.
        match set.clone().without_unlearned() {
            Ok((kept, left_out)) => {
                let all: Vec<usize> = (0..set.len()).filter(|id| set.learned(*id).next().is_some()).collect();
                prop_assert_eq!((kept.len(), kept.len() + left_out), (all.len(), set.len()));
                for (id, old) in all.into_iter().enumerate() {
                    prop_assert_eq!(kept.get(id).unwrap(), set.get(old).unwrap());
                    prop_assert!(kept.learned(id).eq(set.learned(old)));
                }
            }
            Err(_) => prop_assert_eq!(learned, 0),
        }
        let longest = DocumentBatch::longest(&set, 3).unwrap();
        prop_assert_eq!(longest.shape(), [3, t]);
    }
}

#[test]
fn long_documents_can_be_cut() {
    let set = Documents::new([vec![1, 2, 3, 4, 5], vec![6, 7], vec![8, 9, 10, 11]]).unwrap().cut_to(3).unwrap();
    assert_eq!(set.lengths().to_vec(), [3, 2, 3]);
    let batch = DocumentBatch::load(&set, &plan(vec![2, 0, 1])).unwrap();
    assert_eq!((batch.tokens.as_slice(), batch.targets()), (&[8, 9, 10, 1, 2, 3, 6, 7][..], 5));
    assert_eq!(set.cut_to(1).unwrap_err().to_string(), "length is 1, expected at least 2");
}

#[test]
fn documents_with_nothing_to_predict_are_refused() {
    let refused = |documents: Vec<Vec<u32>>| Documents::new(documents).unwrap_err().to_string();
    assert_eq!(refused(vec![]), "documents is none, expected at least one");
    let message = "documents is 1 tokens in number 1, expected from 2 to 2^32 - 1 in each";
    assert_eq!(refused(vec![vec![1, 2], vec![3]]), message);
    let folder = tempdir().unwrap();
    let mut writer = TokenFileWriter::create(folder.path().join("tokens"), 9).unwrap();
    writer.write(&[1, 2, 3, 4, 5]).unwrap();
    let file = writer.finish().unwrap();
    let error = Documents::from_file(file, [2, 2]).unwrap_err().to_string();
    assert_eq!(error, "documents is 4 tokens in all of 5, expected lengths that add up to the file's");
}
