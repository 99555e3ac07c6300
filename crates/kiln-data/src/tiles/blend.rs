//! The weight of a prediction across its tile.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

/// The weight of a prediction along each side of its tile where tiles overlap. The weight of a pixel is the product of both
/// sides, and never 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blend {
    /// Falls linearly from the middle of a tile to its edges.
    Linear,
    /// Falls in a cosine, so that neither value nor slope jumps at the edge of a tile: the Hann window, whose zeros lie half
    /// a pixel outside of the tile.
    #[default]
    RaisedCosine,
    /// Uses the inside of each tile, at least `margin` pixels away from its edges, where the weight is 1. In the margin the weight is tiny
    /// and falls steeply to the edge. Pixels along the edges of the image may be in no inside. There the tile whose edge is farthest counts
    /// alone, which needs tiles that lie at least a tenth of `margin` apart.
    ///
    /// Each pixel has the prediction that it has in the whole image, if `margin` is at least the receptive field of the model, and tiles
    /// and image are aligned alike to the model's strides.
    Crop {
        /// Pixels along each edge.
        margin: usize,
    },
}

/// The weight where the margin begins, and the steepness of its fall to the edge: the product of two such weights is above the least f64.
const CROPPED: f64 = 1e-30;
const FALL: f64 = 200.0;

impl Blend {
    /// The weights of the `side` pixels along a tile, each in (0, 1], the same from both ends.
    pub fn window(self, side: usize) -> Vec<f64> {
        let weight = |pixel: usize| {
            let edge = pixel.min(side - 1 - pixel);
            // The distance of the pixel's middle from the nearer end.
            let at = (edge as f64 + 0.5) / side as f64;
            match self {
                Self::Linear => 2.0 * at,
                Self::RaisedCosine => (PI * at).sin().powi(2),
                Self::Crop { margin } if edge < margin => {
                    CROPPED * (-FALL * (margin - edge) as f64 / margin as f64).exp()
                }
                Self::Crop { .. } => 1.0,
            }
        };
        (0..side).map(weight).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_positive_symmetric_and_largest_in_the_middle() {
        for side in [1, 2, 3, 64, 255, 65536] {
            for blend in [Blend::Linear, Blend::RaisedCosine, Blend::Crop { margin: 5 }] {
                let window = blend.window(side);
                assert!(window.iter().all(|weight| *weight > 0.0 && *weight <= 1.0), "{blend:?} of {side}");
                assert!(window.iter().eq(window.iter().rev()), "{blend:?} of {side}");
                assert!(window[..side.div_ceil(2)].is_sorted(), "{blend:?} of {side}");
            }
        }
    }

    /// Two tiles that share half of their pixels need no normalising.
    #[test]
    fn windows_half_a_tile_apart_add_up_to_one() {
        for blend in [Blend::Linear, Blend::RaisedCosine] {
            let window = blend.window(32);
            assert!((0..16).all(|pixel| (window[pixel] + window[pixel + 16] - 1.0).abs() < 1e-15), "{blend:?}");
        }
    }
}
