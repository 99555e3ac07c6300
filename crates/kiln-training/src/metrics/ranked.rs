//! Scores that are no means over samples.

/// The mean F1 of the classes that occur, from the counts of samples that are both of the class and taken for it, that are taken for it, and that
/// are of it: `3 C` numbers. 0 without any.
pub(super) fn macro_f1(counts: &[f64]) -> f64 {
    let classes = counts.len() / 3;
    let (both, rest) = counts.split_at(classes);
    let (predicted, of_class) = rest.split_at(classes);
    let scores =
        both.iter().zip(predicted).zip(of_class).map(|((both, predicted), of_class)| (both, predicted + of_class));
    let scores: Vec<f64> = scores.filter(|(_, all)| *all > 0.0).map(|(both, all)| 2.0 * both / all).collect();
    scores.iter().sum::<f64>() / scores.len().max(1) as f64
}

/// The area under the ROC curve of `scores`, where `positive` is 1 for positive samples and 0 for others: the Mann-Whitney statistic, by the ranks
/// of the scores, where equal scores have their mean rank. A score that is NaN is below all others.
pub(super) fn roc_auc(scores: &[f64], positive: &[f64]) -> f64 {
    let mut ranked: Vec<(f64, f64)> = scores.iter().copied().zip(positive.iter().copied()).collect();
    let key = |score: f64| if score.is_nan() { f64::NEG_INFINITY } else { score };
    ranked.sort_by(|(a, _), (b, _)| key(*a).total_cmp(&key(*b)));
    let positives: f64 = ranked.iter().map(|(_, positive)| positive).sum();
    let negatives = ranked.len() as f64 - positives;
    let (mut ranks, mut below) = (0.0, 0.0);
    for equal in ranked.chunk_by(|(a, _), (b, _)| key(*a) == key(*b)) {
        let mean_rank = below + (equal.len() as f64 + 1.0) / 2.0;
        ranks += mean_rank * equal.iter().map(|(_, positive)| positive).sum::<f64>();
        below += equal.len() as f64;
    }
    (ranks - positives * (positives + 1.0) / 2.0) / (positives * negatives)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_area_is_the_share_of_pairs_in_their_order(samples in prop::collection::vec((0u8..6, prop::bool::ANY), 0..40)) {
            let (scores, positive): (Vec<f64>, Vec<f64>) =
                samples.iter().map(|(score, positive)| (f64::from(*score), f64::from(*positive))).unzip();
            let of = |wanted: bool| samples.iter().filter(move |(_, positive)| *positive == wanted).map(|(score, _)| *score);
            let pairs: Vec<f64> = of(true)
                .flat_map(|high| of(false).map(move |low| match high.cmp(&low) {
                    std::cmp::Ordering::Greater => 1.0,
                    std::cmp::Ordering::Equal => 0.5,
                    std::cmp::Ordering::Less => 0.0,
                }))
                .collect();
            let share = pairs.iter().sum::<f64>() / pairs.len() as f64;
            let area = roc_auc(&scores, &positive);
            prop_assert!((area - share).abs() < 1e-9 || (area.is_nan() && share.is_nan()), "{} {}", area, share);
        }
    }

    #[test]
    fn a_class_that_is_nowhere_has_no_score_and_one_that_is_only_predicted_has_zero() {
        // Of three classes: 2 of 2 right, none, and one that nothing belongs to but that was predicted once.
        assert_eq!(macro_f1(&[2.0, 0.0, 0.0, 2.0, 0.0, 1.0, 2.0, 0.0, 0.0]), 0.5);
        assert_eq!(macro_f1(&[]), 0.0);
        assert_eq!(roc_auc(&[f64::NAN, 1.0], &[0.0, 1.0]), 1.0);
    }
}
