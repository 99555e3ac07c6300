//! The numbered list of items: names, titles and time limits.

use std::io::Write;

use anyhow::{Result, bail};

use kiln_cli::usage::Usage;

/// One entry of the list.
pub(crate) struct Item {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The time limit in seconds, which is multiplied by the patience.
    pub(crate) seconds: u64,
}

const fn item(name: &'static str, title: &'static str, seconds: u64) -> Item {
    Item { name, title, seconds }
}

/// The items in the order of their numbers, which begin with 1.
pub(crate) const ITEMS: [Item; 10] = [
    item("facts", "What the device is, and which formats it computes in", 15),
    item("arithmetic", "Operations in f32, f16 and bf16", 40),
    item("torch", "PyTorch's speed, memory and largest batch", 85),
    item("curves", "Both pipelines: losses beside the CPU's", 70),
    item("plans", "Checkpoint plans: gradients, memory, time", 45),
    item("prediction", "Predicted and measured memory", 45),
    item("out-of-memory", "Memory that runs out (injected on the CPU)", 50),
    item("uploads", "Uploads beside the step", 20),
    item("overhead", "Kiln's step beside burn's loop", 50),
    item("speed", "Kiln's speed, memory and largest batch", 85),
];

/// The numbers of `items` in order; all numbers if there are none.
pub(crate) fn chosen(items: &[usize]) -> Result<Vec<usize>> {
    if let Some(number) = items.iter().find(|number| !(1..=ITEMS.len()).contains(*number)) {
        bail!(Usage(format!("there is no item {number}, expected 1 to {}; see --list", ITEMS.len())));
    }
    let mut chosen = if items.is_empty() { (1..=ITEMS.len()).collect() } else { items.to_vec() };
    chosen.sort_unstable();
    chosen.dedup();
    Ok(chosen)
}

/// The item whose steps `--warm` compiles and tunes.
pub(crate) fn warmed(items: &[usize]) -> Result<Vec<usize>> {
    const SPEED: usize = 10;
    if items.iter().any(|item| *item != SPEED) {
        bail!(Usage(format!("--warm compiles and tunes what item {SPEED} measures, and takes no other item")));
    }
    Ok(vec![SPEED])
}

/// Prints the list.
pub(crate) fn print() -> Result<()> {
    let mut out = std::io::stdout().lock();
    for (index, item) in ITEMS.iter().enumerate() {
        writeln!(out, "{:>2}  {:<14} {:<52} at most {:>3} s", index + 1, item.name, item.title, item.seconds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_chosen_by_number() {
        assert_eq!(chosen(&[]).unwrap(), Vec::from_iter(1..=10));
        assert_eq!(chosen(&[4, 2, 4]).unwrap(), [2, 4]);
        assert_eq!(ITEMS[warmed(&[]).unwrap()[0] - 1].name, "speed");
        assert!(warmed(&[10, 4]).unwrap_err().is::<Usage>());
        for wrong in [0, 11] {
            assert!(chosen(&[1, wrong]).unwrap_err().to_string().contains("expected 1 to 10"));
        }
    }
}
