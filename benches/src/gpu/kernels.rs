//! The kernels of a step, with the launches and the time of each.

use std::collections::HashMap;

/// All launches of one kernel.
pub(super) struct Kernel {
    pub(super) name: String,
    pub(super) launches: usize,
    pub(super) milliseconds: f64,
}

/// The name of a kernel's type, and of the first of its parameters that say more than that there is a type or a size. `name` is in
/// CubeCL's balanced form.
pub(super) fn short_name(name: &str) -> String {
    const PARTS: usize = 3;
    let says_little = |part: &&str| part.starts_with("__") || part.starts_with("Dynamic") || *part == "()";
    let parts = name.split(" | ").filter(|part| !part.is_empty() && !says_little(part));
    parts.take(PARTS).collect::<Vec<_>>().join(" ")
}

/// The launches and milliseconds of each name, the most milliseconds first.
pub(super) fn sums(launches: impl Iterator<Item = (String, f64)>) -> Vec<Kernel> {
    let mut of: HashMap<String, (usize, f64)> = HashMap::new();
    for (name, milliseconds) in launches {
        let sum = of.entry(name).or_default();
        *sum = (sum.0 + 1, sum.1 + milliseconds);
    }
    let mut kernels: Vec<Kernel> =
        of.into_iter().map(|(name, (launches, milliseconds))| Kernel { name, launches, milliseconds }).collect();
    kernels.sort_by(|a, b| b.milliseconds.total_cmp(&a.milliseconds).then_with(|| a.name.cmp(&b.name)));
    kernels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_what_tells_kernels_apart() {
        let name = "MatmulEntry | TensorArgs | DynamicScalar | __Lhs | DynamicSize | SimpleMatmulFamily | ()";
        assert_eq!(short_name(name), "MatmulEntry TensorArgs SimpleMatmulFamily");
        assert_eq!(short_name("ForwardRows"), "ForwardRows");
    }

    #[test]
    fn the_slowest_kernel_is_first() {
        let launches = [("add", 1.0), ("product", 4.0), ("add", 2.0)];
        let kernels = sums(launches.into_iter().map(|(name, milliseconds)| (name.to_owned(), milliseconds)));
        let found: Vec<_> =
            kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.launches, kernel.milliseconds)).collect();
        assert_eq!(found, [("product", 1, 4.0), ("add", 2, 3.0)]);
    }
}
