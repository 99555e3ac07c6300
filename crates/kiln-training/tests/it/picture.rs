//! The picture in the README is the one that the planner draws.

use super::support::beside;

#[path = "../../../../examples/budget_picture.rs"]
mod drawing;

#[test]
fn the_committed_picture_is_up_to_date() {
    let _turn = beside();
    let committed = include_str!("../../../../docs/budget.svg").trim_end();
    let how = "run `cargo run --example budget_picture > docs/budget.svg`";
    assert!(committed == drawing::draw().unwrap().trim_end(), "docs/budget.svg is out of date: {how}");
}
