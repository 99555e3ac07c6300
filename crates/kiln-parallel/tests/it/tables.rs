//! The tables in the guides are those that the example prints.

use super::example;

#[test]
fn the_guides_have_the_tables_that_the_example_prints() {
    let guides = [
        include_str!("../../../../docs/stages.md"), //
        include_str!("../../../../docs/clusters.md"),
    ];
    let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
    let known = guides.map(lines).concat();
    let mut printed = vec![];
    example::print(&mut printed).unwrap();
    let printed = lines(&String::from_utf8(printed).unwrap());
    let rows: Vec<&String> =
        printed.iter().filter(|line| line.starts_with("| ") || line.starts_with("stage ")).collect();
    let missing: Vec<_> = rows.iter().filter(|row| !known.contains(row)).collect();
    assert!(rows.len() > 100, "{printed:?}");
    assert!(
        missing.is_empty(),
        "docs/stages.md and docs/clusters.md lack rows of `cargo run --example cluster`: {missing:#?}"
    );
}
