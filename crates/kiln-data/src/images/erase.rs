//! A random rectangle of an image, overwritten with noise.

use rand::{Rng, RngExt};

use crate::decode::Image;

/// The smallest and the largest share of the image that is erased.
const AREA: [f64; 2] = [0.02, 1.0 / 3.0];
/// The smallest height of a rectangle of width 1; the largest is its inverse.
const ASPECT: f64 = 0.3;
/// Rectangles that are tried before an image stays as it is.
const TRIES: usize = 10;

/// Overwrites a random rectangle of `image` with noise, every sample uniform in 0..=255. An image stays as it is if ten rectangles in a
/// row do not fit into it.
///
/// Source: Zhong et al. 2017, algorithm 1, with the numbers of timm's `RandomErasing`. timm's mode `pixel` draws normal noise after the
/// image is normalised.
pub(super) fn erase(image: &mut Image, rng: &mut impl Rng) {
    let [height, width, channels] = [image.height, image.width, image.channels];
    for _ in 0..TRIES {
        let area = (height * width) as f64 * rng.random_range(AREA[0]..=AREA[1]);
        let aspect = rng.random_range(ASPECT.ln()..=-ASPECT.ln()).exp();
        let (rows, columns) = ((area * aspect).sqrt().round() as usize, (area / aspect).sqrt().round() as usize);
        if rows < height && columns < width {
            let (top, left) = (rng.random_range(0..=height - rows), rng.random_range(0..=width - columns));
            for row in top..top + rows {
                let first = (row * width + left) * channels;
                rng.fill_bytes(&mut image.pixels[first..first + columns * channels]);
            }
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::sample_rng;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_changes_lies_in_one_rectangle_of_at_most_a_third(
            height in 1usize..40, width in 1usize..40, rgb: bool, seed: u64,
        ) {
            let channels = if rgb { 3 } else { 1 };
            let mut image = Image { pixels: vec![7; height * width * channels], height, width, channels };
            erase(&mut image, &mut sample_rng(seed, 0, 0));
            prop_assert_eq!(image.pixels.len(), height * width * channels);
            let changed: Vec<usize> =
                (0..height * width).filter(|at| image.pixels[at * channels..][..channels] != vec![7; channels]).collect();
            let span = |of: fn(usize, usize) -> usize| {
                let all = changed.iter().map(|at| of(*at, width));
                all.clone().max().map_or(0, |last| last + 1 - all.min().unwrap_or(0))
            };
            let (rows, columns) = (span(|at, width| at / width), span(|at, width| at % width));
            // Sides are rounded to whole pixels.
            let most = (height * width) as f64 / 3.0 + (rows + columns) as f64 / 2.0 + 1.0;
            prop_assert!((rows * columns) as f64 <= most, "{} x {} of {} x {}", rows, columns, height, width);
        }
    }

    #[test]
    fn a_large_image_loses_a_share_within_the_bounds() {
        for id in 0..50 {
            let mut image = Image { pixels: vec![0; 64 * 64], height: 64, width: 64, channels: 1 };
            erase(&mut image, &mut sample_rng(1, 2, id));
            let share = image.pixels.iter().filter(|pixel| **pixel != 0).count() as f64 / 4096.0;
            assert!((0.015..=0.35).contains(&share), "{share}");
        }
    }
}
