//! Textbook operations in f64 on the host: the reference for devices.
// B batch, C channels, H height, W width, M N K matrix sides, T time, D head width

/// `a_mk` times `b_kn`.
pub(crate) fn matmul(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let mut out = vec![0.0; m * n];
    for (row, out) in a.chunks_exact(k).zip(out.chunks_exact_mut(n)) {
        for (a, b) in row.iter().zip(b.chunks_exact(n)) {
            out.iter_mut().zip(b).for_each(|(out, b)| *out += a * b);
        }
    }
    out
}

/// Sizes of a convolution with square kernels and equal padding on all sides.
#[derive(Clone, Copy)]
pub(crate) struct Convolution {
    pub(crate) batch: usize,
    /// Input and output channels.
    pub(crate) channels: [usize; 2],
    /// Height and width.
    pub(crate) side: usize,
    pub(crate) kernel: usize,
    pub(crate) stride: usize,
    pub(crate) padding: usize,
}

impl Convolution {
    pub(crate) fn out_side(&self) -> usize {
        (self.side + 2 * self.padding - self.kernel) / self.stride + 1
    }

    pub(crate) fn apply(&self, x: &[f64], weights: &[f64]) -> Vec<f64> {
        let Self { batch, channels: [inputs, outputs], side, kernel, stride, padding } = *self;
        let out_side = self.out_side();
        let mut out = vec![0.0; batch * outputs * out_side * out_side];
        for (index, out) in out.chunks_exact_mut(out_side * out_side).enumerate() {
            let (image, channel) = (index / outputs, index % outputs);
            for input in 0..inputs {
                let x = &x[(image * inputs + input) * side * side..][..side * side];
                let weights = &weights[(channel * inputs + input) * kernel * kernel..][..kernel * kernel];
                for (place, weight) in weights.iter().enumerate() {
                    let (down, right) = (place / kernel, place % kernel);
                    for row in 0..out_side {
                        let Some(y) = (row * stride + down).checked_sub(padding).filter(|y| *y < side) else {
                            continue;
                        };
                        for column in 0..out_side {
                            let from = (column * stride + right).checked_sub(padding).filter(|x| *x < side);
                            if let Some(from) = from {
                                out[row * out_side + column] += weight * x[y * side + from];
                            }
                        }
                    }
                }
            }
        }
        out
    }
}

/// Each row of `n` minus its mean, divided by its standard deviation.
pub(crate) fn layer_norm(x: &[f64], n: usize, epsilon: f64) -> Vec<f64> {
    x.chunks_exact(n).flat_map(|row| normalized(row, epsilon)).collect()
}

/// `x_bcs`, where `s` is all positions of a channel, normalised over batch and positions.
pub(crate) fn batch_norm(x: &[f64], [b, c, s]: [usize; 3], epsilon: f64) -> Vec<f64> {
    let mut out = vec![0.0; x.len()];
    for channel in 0..c {
        let places: Vec<usize> =
            (0..b).flat_map(|image| (0..s).map(move |place| (image * c + channel) * s + place)).collect();
        let values: Vec<f64> = places.iter().map(|place| x[*place]).collect();
        for (place, value) in places.into_iter().zip(normalized(&values, epsilon)) {
            out[place] = value;
        }
    }
    out
}

fn normalized(values: &[f64], epsilon: f64) -> Vec<f64> {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / count;
    values.iter().map(|x| (x - mean) / (variance + epsilon).sqrt()).collect()
}

/// Softmax of each row of `n`.
pub(crate) fn softmax(x: &[f64], n: usize) -> Vec<f64> {
    let row = |row: &[f64]| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let powers: Vec<f64> = row.iter().map(|x| (x - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        powers.into_iter().map(move |power| power / sum).collect::<Vec<_>>()
    };
    x.chunks_exact(n).flat_map(row).collect()
}

/// Causal attention of `heads` heads, each over `t` positions of width `d`.
pub(crate) fn attention(q: &[f64], k: &[f64], v: &[f64], [heads, t, d]: [usize; 3]) -> Vec<f64> {
    let mut out = Vec::with_capacity(heads * t * d);
    for head in 0..heads {
        let part = |x: &'_ [f64]| x[head * t * d..][..t * d].to_vec();
        let (q, k, v) = (part(q), part(k), part(v));
        for (at, query) in q.chunks_exact(d).enumerate() {
            let dot = |key: &[f64]| key.iter().zip(query).map(|(a, b)| a * b).sum::<f64>() / (d as f64).sqrt();
            let scores: Vec<f64> = k.chunks_exact(d).take(at + 1).map(dot).collect();
            out.extend(matmul(&softmax(&scores, at + 1), &v[..(at + 1) * d], [1, at + 1, d]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_cases_by_hand() {
        assert_eq!(matmul(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], [2, 2, 2]), [19.0, 22.0, 43.0, 50.0]);
        let shape = Convolution { batch: 1, channels: [1, 1], side: 3, kernel: 3, stride: 2, padding: 1 };
        let image: Vec<f64> = (1..=9).map(f64::from).collect();
        assert_eq!(shape.apply(&image, &[1.0; 9]), [12.0, 16.0, 24.0, 28.0]);
        assert_eq!(layer_norm(&[1.0, 3.0, 5.0, 5.0], 2, 0.0)[..2], [-1.0, 1.0]);
        assert_eq!(batch_norm(&[1.0, 7.0, 3.0, 9.0], [2, 2, 1], 0.0), [-1.0, -1.0, 1.0, 1.0]);
        let half = softmax(&[0.0, 3f64.ln()], 2);
        assert!((half[0] - 0.25).abs() < 1e-12 && (half[1] - 0.75).abs() < 1e-12);
        // The first position attends to itself only, the second to both equally.
        assert_eq!(attention(&[0.0, 0.0], &[1.0, 2.0], &[3.0, 5.0], [1, 2, 1]), [3.0, 4.0]);
    }
}
