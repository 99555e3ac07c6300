//! The pairs of a query and a key: those that are hidden, and the weights that are dropped.

use burn::tensor::{DType, Shape};
use burn_cubecl::cubecl;
use burn_cubecl::kernel::{cast, into_contiguous};
use burn_cubecl::tensor::CubeTensor;
use cubecl::CubeElement;
use cubecl::prelude::*;
use cubecl::std::tensor::layout::linear::LinearView;

use super::tiles::{Place, PlaceLaunch, seen};
use crate::attention::terms::Settings;
use crate::mixed::mixed;

/// Masks and dropout of a call. `B` is the dtype of the boolean mask.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Pairs<'a, B: Int> {
    /// How many of the newest keys a query sees, if not all.
    window: usize,
    /// The number of keys of each sample that are no padding.
    lengths: ComptimeOption<LinearView<'a, u32>>,
    /// The boolean mask. Its places are values, and a dimension of length 1 has the distance 0.
    masked: ComptimeOption<LinearView<'a, B>>,
    of_masked: Place,
    /// The distance of keys.
    of_keys: usize,
    /// The low and the high half of the seed.
    seed: ComptimeOption<LinearView<'a, u32>>,
    /// Weights whose words are below this are dropped.
    threshold: u32,
    /// The factor of the others.
    factor: f32,
}

#[cube]
impl<B: Int> Pairs<'_, B> {
    /// The number of keys that queries up to `last` see by their position, and that are no padding.
    pub(super) fn seen(&self, sample: usize, last: usize, time: usize, keys: usize, #[comptime] causal: bool) -> usize {
        let seen = seen(last, time, keys, causal);
        #[comptime]
        match &self.lengths {
            ComptimeOption::Some(lengths) => min(seen, lengths.read(sample) as usize),
            ComptimeOption::None => seen,
        }
    }

    /// The first key that a query sees by its position.
    pub(super) fn first(&self, query: usize, time: usize, keys: usize, #[comptime] windowed: bool) -> usize {
        let mut first = 0usize;
        if comptime!(windowed) {
            let (position, passed) = (query + 1 + keys, time + self.window);
            first = select(position > passed, position - passed, 0usize);
        }
        first
    }

    /// The end of the queries that see keys up to `last` by their position.
    pub(super) fn last_query(&self, last: usize, time: usize, keys: usize, #[comptime] windowed: bool) -> usize {
        let mut end = time;
        if comptime!(windowed) {
            let position = last + time + self.window;
            end = min(time, select(position > keys, position - keys, 0usize));
        }
        end
    }

    /// Whether the boolean mask leaves a pair.
    pub(super) fn shows(&self, sample: usize, head: usize, query: usize, key: usize) -> bool {
        #[comptime]
        match &self.masked {
            ComptimeOption::Some(masked) => {
                let of_query = self.of_masked.of_head(sample, head) + query * self.of_masked.row;
                masked.read(of_query + key * self.of_keys) == B::from_int(0)
            }
            ComptimeOption::None => true.runtime(),
        }
    }

    /// The word of a head, counted over all samples.
    pub(super) fn of_head(&self, head: usize) -> u32 {
        #[comptime]
        match &self.seed {
            ComptimeOption::Some(seed) => mixed(head as u32 + mixed(mixed(seed.read(0)) ^ seed.read(1))),
            ComptimeOption::None => 0u32.runtime(),
        }
    }

    /// The word of a query, from that of its head.
    pub(super) fn of_query(&self, of_head: u32, query: usize) -> u32 {
        #[comptime]
        match &self.seed {
            ComptimeOption::Some(_) => mixed(query as u32 + of_head),
            ComptimeOption::None => of_head,
        }
    }

    /// The factor of a weight: 0 if it is dropped.
    pub(super) fn factor(&self, of_query: u32, key: usize) -> f32 {
        #[comptime]
        match &self.seed {
            ComptimeOption::Some(_) => {
                select(mixed(of_query ^ mixed(key as u32 + 1)) < self.threshold, 0.0f32, self.factor)
            }
            ComptimeOption::None => 1.0f32.runtime(),
        }
    }
}

/// The tensors of a call's masks and dropout.
pub(super) struct Terms {
    window: usize,
    lengths: Option<CubeTensor>,
    masked: Option<CubeTensor>,
    seed: Option<CubeTensor>,
    dropout: f64,
}

impl Terms {
    /// From the last inputs of an operation: the boolean mask and the seed, if there are any. `like` is on their device.
    pub(super) fn new(settings: &Settings, mut inputs: Vec<CubeTensor>, like: &CubeTensor) -> Self {
        let seed = if settings.dropout > 0.0 { inputs.pop() } else { None };
        let seed = seed.map(|seed| {
            let seed = into_contiguous(if seed.dtype == DType::I64 { seed } else { cast(seed, DType::I64) });
            CubeTensor::new_contiguous(seed.client, seed.device, Shape::new([2]), seed.handle, DType::U32)
        });
        let lengths = settings.key_lengths.as_ref().map(|lengths| {
            let lengths: Vec<u32> = lengths.iter().map(|length| *length as u32).collect();
            let handle = like.client.create_from_slice(u32::as_bytes(&lengths));
            let shape = Shape::new([lengths.len()]);
            CubeTensor::new_contiguous(like.client.clone(), like.device.clone(), shape, handle, DType::U32)
        });
        let window = settings.window.unwrap_or(0);
        Self { window, lengths, masked: inputs.pop().map(into_contiguous), seed, dropout: settings.dropout }
    }

    /// The dtype of the boolean mask.
    pub(super) fn dtype(&self) -> DType {
        self.masked.as_ref().map_or(DType::U32, |masked| masked.dtype)
    }

    pub(super) fn launch<B: Int>(&self) -> PairsLaunch<'static, B> {
        let view = |tensor: &Option<CubeTensor>| tensor.clone().map(CubeTensor::into_linear_view);
        let (mut place, mut of_keys) = (PlaceLaunch::new(0, 0, 0, 0), 0);
        if let Some(masked) = &self.masked {
            let distances: Vec<usize> =
                (0..4).map(|dim| if masked.meta.shape()[dim] == 1 { 0 } else { masked.meta.strides()[dim] }).collect();
            place = PlaceLaunch::new(0, distances[0], distances[1], distances[2]);
            of_keys = distances[3];
        }
        PairsLaunch::new(
            self.window,
            view(&self.lengths).into(),
            view(&self.masked).into(),
            place,
            of_keys,
            view(&self.seed).into(),
            (self.dropout * 2f64.powi(32)) as u32,
            (1.0 / (1.0 - self.dropout)) as f32,
        )
    }
}
