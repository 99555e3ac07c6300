//! Names of devices, as people type them.

/// Returns Kiln's name of a device: `flex` for the CPU, `cuda:N` for a GPU. Unknown names are returned as they are.
pub fn canonical(name: &str) -> String {
    let lower = name.trim().to_ascii_lowercase();
    match lower.split_once(':').unwrap_or((&lower, "0")) {
        ("cpu" | "flex", "0") => "flex".into(),
        ("gpu" | "cuda", index) => format!("cuda:{index}"),
        _ => name.trim().to_owned(),
    }
}

/// Applies [`canonical`] to each name of a list that is separated by commas, as in `gpu:0,gpu:1`.
pub fn canonical_list(names: &str) -> String {
    names.split(',').map(canonical).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::{canonical, canonical_list};

    #[test]
    fn what_other_programs_call_a_device_is_understood() {
        for (typed, name) in
            [("cpu", "flex"), ("CPU", "flex"), ("gpu", "cuda:0"), ("cuda", "cuda:0"), ("gpu:1", "cuda:1")]
        {
            assert_eq!(canonical(typed), name);
        }
        assert_eq!((canonical("tpu"), canonical("flex:3")), ("tpu".into(), "flex:3".into()));
        assert_eq!(canonical_list("gpu:0,cuda:1"), "cuda:0,cuda:1");
        assert_eq!(canonical_list("2"), "2");
    }
}
