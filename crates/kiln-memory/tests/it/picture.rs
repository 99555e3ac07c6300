//! The picture in the guide is the one that the code draws.

#[path = "../../examples/memory_picture.rs"]
mod drawing;

#[test]
fn the_committed_picture_is_up_to_date() {
    let committed = include_str!("../../../../docs/memory.svg").trim_end();
    let how = "run `cargo run --example memory_picture > docs/memory.svg`";
    assert!(committed == drawing::draw().unwrap().trim_end(), "docs/memory.svg is out of date: {how}");
}
