//! The picture in the guide is the one that the code draws.
#![allow(clippy::unwrap_used, reason = "a test ends at what goes wrong")]

#[path = "../examples/picture.rs"]
mod picture;

#[test]
fn the_committed_picture_is_up_to_date() {
    let committed = include_str!("../../../docs/checkpointing.svg");
    let how = "run `cargo run --example picture > docs/checkpointing.svg`";
    assert!(committed == picture::draw().unwrap(), "docs/checkpointing.svg is out of date: {how}");
}
