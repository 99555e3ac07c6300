//! What is in memory at the peak of a planned step, as a table.

use std::collections::BTreeMap;

use bytesize::ByteSize;
use kiln_memory::{Buffer, Category, Prediction};
use serde_json::{Value, json};

/// Equal buffers of several layers.
pub(super) struct Group {
    category: Category,
    /// The parameter or module, with a star for numbers, and shape and dtype of each.
    what: String,
    count: usize,
    bytes: u64,
}

/// The buffers at the peak, the largest groups of each category first. Their bytes add up to the peak.
pub(super) fn groups(prediction: &Prediction) -> Vec<Group> {
    let mut by_what: BTreeMap<(Category, String), Group> = BTreeMap::new();
    for buffer in prediction.alive_at(prediction.peak_at) {
        let (category, what) = (buffer.category, words(buffer));
        let group = by_what.entry((category, what.clone())).or_insert(Group { category, what, count: 0, bytes: 0 });
        group.count += 1;
        group.bytes += buffer.bytes;
    }
    let mut groups: Vec<Group> = by_what.into_values().collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.bytes));
    let of =
        |category| groups.iter().filter(move |group| group.category == category).map(|group| group.bytes).sum::<u64>();
    let totals: BTreeMap<Category, u64> = Category::ALL.into_iter().map(|category| (category, of(category))).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(totals[&group.category]));
    groups
}

/// The words for a buffer: those of equal ones of other layers are the same.
fn words(buffer: &Buffer) -> String {
    let owner = buffer.path.as_deref().unwrap_or(&buffer.operation);
    let parts = owner.split('.').filter(|part| !["nested", "autocast", "weight"].contains(part));
    let parts = parts.map(|part| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*" } else { part });
    let owner = parts.collect::<Vec<_>>().join(".");
    if buffer.shape.is_empty() {
        return owner;
    }
    let shape = buffer.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
    format!("{owner}, {} {shape}", buffer.dtype)
}

/// The groups as lines, those of less than a thousandth of the peak as one line of their category.
pub(super) fn text(groups: &[Group]) -> String {
    let peak: u64 = groups.iter().map(|group| group.bytes).sum();
    let mut lines = vec!["In memory at the peak:".to_owned()];
    let mut at = 0;
    while at < groups.len() {
        let end = at + groups[at..].iter().take_while(|group| group.category == groups[at].category).count();
        let own = &groups[at..end];
        let total: u64 = own.iter().map(|group| group.bytes).sum();
        lines.push(format!("{:>11}  {}", ByteSize(total).to_string(), own[0].category));
        let (large, small): (Vec<_>, Vec<_>) = own.iter().partition(|group| 1000 * group.bytes >= peak);
        for Group { what, count, bytes, .. } in large {
            let count = if *count > 1 { format!("{count} of ") } else { String::new() };
            lines.push(format!("{:>11}    {count}{what}", ByteSize(*bytes).to_string()));
        }
        if !small.is_empty() {
            let bytes = ByteSize(small.iter().map(|group| group.bytes).sum());
            lines.push(format!("{:>11}    others", bytes.to_string()));
        }
        at = end;
    }
    lines.join("\n")
}

pub(super) fn json(groups: &[Group]) -> Value {
    let group = |Group { category, what, count, bytes }: &Group| json!({ "category": category, "what": what, "count": count, "bytes": bytes });
    groups.iter().map(group).collect()
}
