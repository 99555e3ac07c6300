//! The picture in the guide is the one that the code draws.

#[path = "../../examples/picture.rs"]
mod example;

#[test]
fn the_committed_picture_is_up_to_date() {
    let _alone = crate::support::alone();
    let committed = include_str!("../../../../docs/checkpointing.svg");
    let how = "run `cargo run --example picture > docs/checkpointing.svg`";
    assert!(committed == example::draw().unwrap(), "docs/checkpointing.svg is out of date: {how}");
}
