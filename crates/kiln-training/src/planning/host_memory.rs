//! The memory that this process may still take on the host: the free memory, within the limits of its control groups (Linux).

use std::fs;
use std::path::{Component, Path, PathBuf};

/// The files of a control group with its memory limit and its memory in use.
struct GroupFiles {
    /// Where the groups are, below the root of the file system.
    mount: &'static str,
    /// Limits in bytes. Other text, such as `max`, stands for none.
    limits: &'static [&'static str],
    taken: &'static str,
    /// The line of `memory.stat` with the file pages that the kernel drops before it refuses memory.
    reclaimable: &'static str,
}

const V2: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    taken: "memory.current",
    reclaimable: "inactive_file",
};

const V1: GroupFiles = GroupFiles {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    taken: "memory.usage_in_bytes",
    reclaimable: "total_inactive_file",
};

/// The bytes that the operating system would hand out to this process without swapping.
pub(super) fn available() -> Option<u64> {
    available_in(Path::new("/"))
}

/// The bytes that this process may take, read from `proc` and `sys` below `root`. Tests pass another root than `/`. `None` if
/// `proc/meminfo` cannot be read.
fn available_in(root: &Path) -> Option<u64> {
    let kilobytes = value(&text(&root.join("proc/meminfo"))?, "MemAvailable:")?;
    let groups = text(&root.join("proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().flat_map(|line| left_in(root, line));
    left.chain([kilobytes << 10]).min()
}

/// The bytes that are left in each control group around the process. `line` is one of `/proc/self/cgroup`: `number:controllers:path`.
fn left_in(root: &Path, line: &str) -> Vec<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { return vec![] };
    let files = match controllers {
        "" => &V2,
        _ if controllers.split(',').any(|controller| controller == "memory") => &V1,
        _ => return vec![],
    };
    let path = group_path(path);
    path.ancestors().filter_map(|group| left_in_group(&root.join(files.mount).join(group), files)).collect()
}

/// The path of a control group below the root of the groups. A container may see its own group as this root, but its path as the host sees it.
pub(crate) fn group_path(path: &str) -> PathBuf {
    let normal = |part| if let Component::Normal(name) = part { Some(name) } else { None };
    Path::new(path).components().filter_map(normal).collect()
}

fn left_in_group(group: &Path, files: &GroupFiles) -> Option<u64> {
    let number = |file: &str| text(&group.join(file))?.trim().parse::<u64>().ok();
    let limit = files.limits.iter().filter_map(|file| number(file)).min()?;
    let stat = text(&group.join("memory.stat")).unwrap_or_default();
    let reclaimable = value(&stat, files.reclaimable).unwrap_or(0);
    let taken = number(files.taken).unwrap_or(0).saturating_sub(reclaimable);
    Some(limit.saturating_sub(taken))
}

/// The number behind `name` in a file of lines.
fn value(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    lines.find_map(|mut words| (words.next() == Some(name)).then(|| words.next()?.parse().ok())?)
}

fn text(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A root with 4096 MiB of memory available, the control group of the process, and files of groups.
    fn available(cgroup: &str, files: &[(&str, u64)]) -> Option<u64> {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: String| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/meminfo", "MemTotal:  8388608 kB\nMemFree: 1048576 kB\nMemAvailable:  4194304 kB\n".into());
        write("proc/self/cgroup", cgroup.into());
        for (path, number) in files {
            let name = path.rsplit('/').next().unwrap();
            match *number {
                u64::MAX => write(path, "max\n".into()),
                number if name == "memory.stat" => {
                    write(path, format!("file {number}\ninactive_file {number}\ntotal_inactive_file {number}\n"));
                }
                number => write(path, format!("{number}\n")),
            }
        }
        available_in(root.path())
    }

    #[test]
    fn the_least_of_free_memory_and_all_limits_around_the_process_is_available() {
        assert_eq!(available("", &[]), Some(4096 * MIB), "no groups");
        let v2 = "0::/user.slice/job\n";
        let none = [("sys/fs/cgroup/user.slice/job/memory.max", u64::MAX)];
        assert_eq!(available(v2, &none), Some(4096 * MIB), "a group without a limit");
        let own = [
            ("sys/fs/cgroup/user.slice/job/memory.max", 512 * MIB),
            ("sys/fs/cgroup/user.slice/job/memory.high", u64::MAX),
            ("sys/fs/cgroup/user.slice/job/memory.current", 200 * MIB),
        ];
        assert_eq!(available(v2, &own), Some(312 * MIB));
        let dropped = [("sys/fs/cgroup/user.slice/job/memory.stat", 50 * MIB)];
        assert_eq!(available(v2, &[own.as_slice(), &dropped].concat()), Some(362 * MIB), "file pages can be dropped");
        let high = [("sys/fs/cgroup/user.slice/job/memory.high", 300 * MIB)];
        assert_eq!(available(v2, &[own.as_slice(), &high].concat()), Some(100 * MIB));
        let parent = [
            ("sys/fs/cgroup/user.slice/memory.max", 600 * MIB),
            ("sys/fs/cgroup/user.slice/memory.current", 590 * MIB),
        ];
        assert_eq!(available(v2, &[own.as_slice(), &parent].concat()), Some(10 * MIB));
        let above = [
            ("sys/fs/cgroup/user.slice/job/memory.max", 100 * MIB),
            ("sys/fs/cgroup/user.slice/job/memory.current", 101 * MIB),
        ];
        assert_eq!(available(v2, &above), Some(0));
    }

    #[test]
    fn limits_of_version_1_and_of_containers_are_found() {
        let v1 = "12:cpu,cpuacct:/\n5:memory:/docker/0123\n1:name=systemd:/docker/0123\n0::/system.slice\n";
        let own = [
            ("sys/fs/cgroup/memory/docker/0123/memory.limit_in_bytes", 64 * MIB),
            ("sys/fs/cgroup/memory/docker/0123/memory.usage_in_bytes", 32 * MIB),
            ("sys/fs/cgroup/memory/docker/0123/memory.stat", 8 * MIB),
            // The value by which the kernel says that there is no limit.
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", 9_223_372_036_854_771_712),
        ];
        assert_eq!(available(v1, &own), Some(40 * MIB));
        let mounted = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", 64 * MIB),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", MIB),
        ];
        assert_eq!(available(v1, &mounted), Some(63 * MIB), "the container's group is the root that it sees");
        let namespace = [("sys/fs/cgroup/memory.max", 64 * MIB), ("sys/fs/cgroup/memory.current", 4 * MIB)];
        for path in ["0::/\n", "0::/../other\n", "0::/docker/0123\n"] {
            assert_eq!(available(path, &namespace), Some(60 * MIB), "{path}");
        }
        assert_eq!(available("odd\n5\n:::\n", &[]), Some(4096 * MIB));
    }
}
