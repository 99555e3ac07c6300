//! How the samples of a JPEG are coded, and the bytes that decoding takes.

use std::ops::Range;

use crate::decode::options::DecodePath;
use crate::decode::pixels::colour::ColourModel;

/// How the samples are coded, from the frame header.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Layout {
    /// Horizontal and vertical sampling factor of each component.
    pub(super) sampling: Vec<[usize; 2]>,
    pub(super) progressive: bool,
    /// Whether all components are in the first scan.
    pub(super) interleaved: bool,
    /// Three components that are RGB by Adobe's marker, which zune-jpeg mistakes for damaged CMYK.
    pub(super) adobe_rgb: bool,
    /// Where the first scan begins.
    pub(super) first_scan: u64,
    /// Damaged bytes before the first scan that decoders skip when they are filled with 0xff.
    pub(super) blank: Vec<Range<u64>>,
    /// The first of this damage.
    pub(super) damage: Option<&'static str>,
}

impl Layout {
    /// The colour model of the decoded pixels.
    pub(super) fn pixels(&self) -> ColourModel {
        if self.sampling.len() == 1 { ColourModel::Gray } else { ColourModel::Rgb }
    }

    /// Channels that are kept when `asked` are wanted.
    pub(crate) fn kept(&self, asked: usize) -> usize {
        self.pixels().kept(asked)
    }

    /// Whether decoding at a fraction of the size is faster. The inverse transform is most of the work of a sequential JPEG,
    /// but little of a progressive one, all coefficients of which are kept in memory. With libjpeg-turbo it is always faster.
    pub(crate) fn scales_well(&self) -> bool {
        self.sequential() || self.turbo()
    }

    /// Whether a row of blocks is complete as soon as it is read.
    pub(super) fn sequential(&self) -> bool {
        !self.progressive && self.interleaved
    }

    /// Whether libjpeg-turbo decodes it. It does not convert CMYK.
    pub(super) fn turbo(&self) -> bool {
        cfg!(feature = "turbo") && self.sampling.len() != 4
    }

    /// The largest of 8, 4 and 2 that leaves at least `least` `[rows, columns]` of the part that is wanted.
    pub(crate) fn denominator(factor: usize) -> Option<usize> {
        [8, 4, 2].into_iter().find(|denominator| *denominator <= factor)
    }

    /// `[height, width]` of the decoded pixels.
    pub(crate) fn reduced([height, width]: [usize; 2], denominator: usize) -> [usize; 2] {
        [height.div_ceil(denominator), width.div_ceil(denominator)]
    }

    /// Bytes that decoding takes at its peak, the decoded pixels included.
    pub(crate) fn bytes(&self, size: [usize; 2], path: DecodePath, file_bytes: u64) -> u64 {
        let [height, width] = size;
        let hmax = self.sampling.iter().map(|[h, _]| *h).max().unwrap_or(1);
        let vmax = self.sampling.iter().map(|[_, v]| *v).max().unwrap_or(1);
        let [columns, rows] = [width.div_ceil(8 * hmax) * 8, height.div_ceil(8 * vmax) * 8];
        // Samples of all components with their padding, and in one row of blocks.
        let samples: u64 = self.sampling.iter().map(|[h, v]| (columns * h * rows * v) as u64).sum();
        let row: u64 = self.sampling.iter().map(|[h, v]| (columns * h * 8 * v) as u64).sum();
        let components = self.sampling.len() as u64;
        let coefficients = if self.sequential() { 0 } else { 2 * samples };
        match path {
            _ if self.turbo() => {
                let [height, width] = Self::reduced(size, path.factor());
                // A vector that grows while the file is read into it may be twice its size.
                coefficients + 2 * file_bytes + (height * width) as u64 * components + 4 * row + SCALED_STATE
            }
            DecodePath::ScaledJpeg { denominator } => {
                let area = (denominator * denominator) as u64;
                let [height, width] = Self::reduced(size, denominator);
                // A gray plane becomes the image itself.
                let image = if components == 1 { 0 } else { (height * width) as u64 * components };
                coefficients + samples / area + image + 4 * row + SCALED_STATE
            }
            _ if self.adobe_rgb => coefficients + samples + 3 * (height * width) as u64 + 4 * row + SCALED_STATE,
            _ => {
                let image = (height * width) as u64 * if components == 1 { 1 } else { 3 };
                // Upsampling keeps whole rows of blocks, as i16, before and after.
                let upsampled = (columns * hmax * 8 * vmax) as u64 * components;
                let rows = if hmax * vmax == 1 { 2 * row } else { 2 * row + 3 * upsampled };
                coefficients + image + rows + WHOLE_STATE
            }
        }
    }
}

/// Huffman and quantization tables, one comment, which is read whole before it is skipped, and a piece of the file behind
/// the end of the scan.
const SCALED_STATE: u64 = 160 * 1024;
const WHOLE_STATE: u64 = 160 * 1024;
