//! The levels of codes of eight bits for numbers whose sizes differ by decades.

/// `create_dynamic_map` of bitsandbytes (Dettmers 2016, arXiv 1511.04561): decades with 1, 2, 4, .. levels (twice as many if unsigned), and 0
/// and 1, from the smallest to the largest. The number of `decades` is also the number of bits of a code without its sign.
///
/// ```
/// let levels = kiln_operations::dynamic_map(true, 7);
/// assert_eq!((levels.len(), levels[127], levels[255]), (256, 0.0, 1.0));
/// ```
pub fn dynamic_map(signed: bool, decades: i32) -> Vec<f32> {
    let mut levels = vec![0.0, 1.0];
    for decade in 0..decades {
        let count = 1 << (decade + i32::from(!signed));
        let factor = 10f64.powi(decade + 1 - decades) as f32;
        let bounds = linspace(count + 1);
        for pair in bounds.windows(2) {
            let level = factor * ((pair[0] + pair[1]) / 2.0);
            levels.push(level);
            if signed {
                levels.push(-level);
            }
        }
    }
    levels.sort_by(f32::total_cmp);
    levels
}

/// `torch.linspace(0.1, 1, count)` with torch's roundings: it counts from both ends, and rounds each number once.
fn linspace(count: usize) -> Vec<f32> {
    let step = (1.0 - 0.1f32) / (count - 1) as f32;
    let at = |index: usize| match index < count / 2 {
        true => step.mul_add(index as f32, 0.1),
        false => (-step).mul_add((count - index - 1) as f32, 1.0),
    };
    (0..count).map(at).collect()
}
