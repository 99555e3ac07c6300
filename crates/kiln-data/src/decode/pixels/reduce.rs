//! Averages boxes of pixels while the rows of an image are decoded.
//!
//! By hand: no library averages rows while they are decoded, which keeps a JPEG of 100 megapixels at 9.5 MB.

/// Averages boxes of `factor` x `factor` pixels of a stream of rows, or pieces of rows.
///
/// A box at the edge is averaged over the pixels that it has, as in Pillow's `Image.reduce`.
pub(crate) struct Boxes {
    size: [usize; 2],
    channels: usize,
    factor: usize,
    /// Reduced rows that are complete; with a factor of 1 all rows.
    done: Vec<u8>,
    /// Sums of the reduced rows that follow them.
    sums: Vec<u32>,
}

/// The largest factor: the sum of the samples of a box fits an u32.
pub(crate) const MAX_FACTOR: usize = 4096;

impl Boxes {
    /// For an image, or a part of one, of `[height, width]`.
    pub(crate) fn new(size: [usize; 2], channels: usize, factor: usize) -> Self {
        let length = size.iter().map(|side| side.div_ceil(factor)).product::<usize>() * channels;
        let done = if factor == 1 { vec![0; length] } else { Vec::with_capacity(length) };
        Self { size, channels, factor, done, sums: vec![] }
    }

    /// Samples in a reduced row.
    fn stride(&self) -> usize {
        self.size[1].div_ceil(self.factor) * self.channels
    }

    /// Adds pixels of row `y` that begin in column `x`. Rows before those given to [`complete`](Self::complete) cannot be added to any more.
    pub(crate) fn add(&mut self, y: usize, x: usize, pixels: &[u8]) {
        let stride = self.stride();
        if self.factor == 1 {
            let at = y * stride + x * self.channels;
            return self.done[at..at + pixels.len()].copy_from_slice(pixels);
        }
        let at = (y / self.factor - self.done.len() / stride) * stride;
        if self.sums.len() < at + stride {
            self.sums.resize(at + stride, 0);
        }
        let sums = &mut self.sums[at..at + stride];
        match self.channels {
            1 => sum::<1>(sums, x, pixels, self.factor),
            _ => sum::<3>(sums, x, pixels, self.factor),
        }
    }

    /// All pixels of the rows before `y` were added.
    pub(crate) fn complete(&mut self, y: usize) {
        if self.factor == 1 {
            return;
        }
        let (stride, [height, width]) = (self.stride(), self.size);
        let until = if y >= height { height.div_ceil(self.factor) } else { y / self.factor };
        let first = self.done.len() / stride;
        for row in first..until {
            let rows = self.factor.min(height - row * self.factor);
            let sums = &self.sums[(row - first) * stride..(row - first + 1) * stride];
            for (x, sums) in sums.chunks_exact(self.channels).enumerate() {
                let count = (rows * self.factor.min(width - x * self.factor)) as u32;
                self.done.extend(sums.iter().map(|sum| ((sum + count / 2) / count) as u8));
            }
        }
        self.sums.drain(..(until - first) * stride);
    }

    /// The reduced pixels.
    pub(crate) fn finish(self) -> Vec<u8> {
        self.done
    }
}

fn sum<const C: usize>(sums: &mut [u32], x: usize, pixels: &[u8], factor: usize) {
    let (first, rest) = pixels.split_at((((factor - x % factor) % factor) * C).min(pixels.len()));
    let mut add = |index: usize, pixels: &[u8]| {
        let mut total = [0u32; C];
        for pixel in pixels.chunks_exact(C) {
            (0..C).for_each(|c| total[c] += u32::from(pixel[c]));
        }
        let sums = &mut sums[index * C..(index + 1) * C];
        (0..C).for_each(|c| sums[c] += total[c]);
    };
    if !first.is_empty() {
        add(x / factor, first);
    }
    for (i, pixels) in rest.chunks(factor * C).enumerate() {
        add(x.div_ceil(factor) + i, pixels);
    }
}

/// Bytes of a [`Boxes`] that takes `rows` rows at a time.
pub(crate) fn bytes([height, width]: [usize; 2], channels: usize, factor: usize, rows: usize) -> u64 {
    let [reduced, columns] = [height, width].map(|side| side.div_ceil(factor) as u64);
    let band = if factor == 1 { 0 } else { (rows.div_ceil(factor) as u64 + 1).min(reduced) * 4 };
    (reduced + band) * columns * channels as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn tiles_in_any_order_of_a_band_give_the_mean_of_each_box(
            height in 1usize..40, width in 1usize..40, factor in 1usize..9, tile in 1usize..20, rgb: bool, seed: u8,
        ) {
            let channels = if rgb { 3 } else { 1 };
            let image: Vec<u8> =
                (0..height * width * channels).map(|i| (i as u8).wrapping_mul(37).wrapping_add(seed)).collect();
            let mut boxes = Boxes::new([height, width], channels, factor);
            for top in (0..height).step_by(tile) {
                for left in (0..width).step_by(tile).rev() {
                    for y in top..height.min(top + tile) {
                        let at = (y * width + left) * channels;
                        boxes.add(y, left, &image[at..at + tile.min(width - left) * channels]);
                    }
                }
                boxes.complete(height.min(top + tile));
            }
            let mut expected = vec![];
            for top in (0..height).step_by(factor) {
                for left in (0..width).step_by(factor) {
                    for c in 0..channels {
                        let rows = top..height.min(top + factor);
                        let cells: Vec<u32> = rows
                            .flat_map(|y| (left..width.min(left + factor)).map(move |x| (y * width + x) * channels + c))
                            .map(|at| u32::from(image[at]))
                            .collect();
                        let count = cells.len() as u32;
                        expected.push(((cells.iter().sum::<u32>() + count / 2) / count) as u8);
                    }
                }
            }
            prop_assert_eq!(boxes.finish(), expected);
        }
    }
}
