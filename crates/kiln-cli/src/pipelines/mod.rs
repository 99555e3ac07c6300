//! The reference pipelines: their settings, tasks and data.

mod beginning;
mod chained;
mod class_counts;
mod classify;
mod classify_recipe;
mod compression;
mod kind;
mod load;
mod model;
mod next_token;
mod optimizer;
mod parallel;
mod predictions;
mod run;
mod segment;
mod settings;
mod sizes;
mod teacher;
mod written;

pub use beginning::MODEL;
pub use chained::Chained;
pub use class_counts::ClassCounts;
pub use classify::{Classify, check_against};
pub use classify::{
    classify, classify_for_planning, decode_options, decoded as decoded_images, normalization, open as open_images,
    run as classify_run, test_loader as classify_test_loader,
};
pub use classify_recipe::{
    DEFAULT as DEFAULT_CLASSIFIER, fixture_recipe as classify_fixture_recipe, recipe_for as classify_recipe,
};
pub use compression::{
    Attached, CompressionSettings, LoraSettings, PruneSettings, QuantizeSettings, TeacherSettings, simulate_inputs,
};
pub use kind::Kind;
pub use load::{
    CHECKPOINTS, INPUT_RANGES, InitError, QUANTIZED, best_of, checkpoint_of, is_untrained, load_any, load_merged,
    load_to_evaluate, settings_beside,
};
pub use next_token::{NextToken, fixture_recipe as next_token_fixture_recipe, recipe as next_token_recipe};
pub use next_token::{next_token, open as open_text, run as next_token_run, test_loader as next_token_test_loader};
pub use optimizer::usual_rate;
pub use parallel::{ParallelSettings, Places, Replicas};
pub use run::{Finder, Findings, Init, PipelineSettings, Run, Setup, SharedTask, Taken, WriteInto, divided};
pub use segment::{
    Predictor as SegmentPredictor, ScoredRow, Scores, Segment, SegmentData, Tiles as SegmentTiles,
    check_images as check_segment_images, class_colour, class_weights as balanced_class_weights, every_nth_pixel,
    largest as largest_class, open as open_segments, part as segment_part, recipe as segment_recipe,
    run as segment_run, segment, segment_for_planning, test_loader as segment_test_loader, tiles as segment_tiles,
};
pub use settings::{
    ClassifySettings, GptSettings, IgnoredClass, ImageSettings, LossSettings, RunSettings, SegmentSettings,
    TextSettings, TileSettings,
};
pub use sizes::{LoaderMemory, MemorySetting};
