//! The pictures in the README and in the guide to streaming are those that the planner draws.

use super::support::beside;

#[path = "../../../../examples/budget_picture.rs"]
mod drawing;

#[test]
fn the_committed_pictures_are_up_to_date() {
    let _turn = beside();
    let committed = include_str!("../../../../docs/budget.svg").trim_end();
    let how = "run `cargo run --example budget_picture > docs/budget.svg`";
    assert!(committed == drawing::draw().unwrap().trim_end(), "docs/budget.svg is out of date: {how}");
    let committed = include_str!("../../../../docs/streaming.svg").trim_end();
    let how = "run `cargo run --example budget_picture streamed > docs/streaming.svg`";
    assert!(committed == drawing::draw_streamed().unwrap().trim_end(), "docs/streaming.svg is out of date: {how}");
}
