//! The pages of the program's own file that are in memory: code and constants.

use std::fs;

use super::pages::drop_file_pages;

/// Takes the program's code out of the memory of the process: for the end of a phase whose code is not that of the next one, as the start of
/// a program. What runs next comes in again from the system's cache of files, in about a millisecond. Does nothing elsewhere than on Linux.
pub fn release_code() {
    for (start, end) in unchanged(&maps("smaps"), &program()) {
        drop_file_pages(start, end - start);
    }
}

/// Bytes of the program's code, in memory or not. `None` where they are not known, as elsewhere than on Linux.
pub fn code_bytes() -> Option<u64> {
    let (maps, program) = (maps("maps"), program());
    let code = maps.lines().filter_map(addresses).filter(|(_, rest)| rest.starts_with("r-xp") && is_of(rest, &program));
    let bytes = code.map(|((start, end), _)| (end - start) as u64).sum();
    (bytes > 0).then_some(bytes)
}

/// The path of the program. Empty if it is not known.
fn program() -> String {
    let path = fs::read_link("/proc/self/exe").ok();
    path.and_then(|path| path.into_os_string().into_string().ok()).unwrap_or_default()
}

fn maps(file: &str) -> String {
    fs::read_to_string(format!("/proc/self/{file}")).unwrap_or_default()
}

fn is_of(line: &str, file: &str) -> bool {
    !file.is_empty() && line.ends_with(file)
}

/// The addresses at which a file is mapped, can not be written, and has no page that was changed since it was read, in memory or swapped
/// out.
fn unchanged(maps: &str, file: &str) -> Vec<(usize, usize)> {
    let mut found = vec![];
    let mut mapping = None;
    for line in maps.lines() {
        if let Some((range, rest)) = addresses(line) {
            let is_read_only = rest.starts_with("r-xp") || rest.starts_with("r--p");
            mapping = (is_read_only && is_of(rest, file)).then_some(range);
        } else if let Some(kilobytes) = line.strip_prefix("Anonymous:") {
            mapping = mapping.filter(|_| kilobytes.trim() == "0 kB");
        } else if let Some(kilobytes) = line.strip_prefix("Swap:") {
            // It comes after the other.
            found.extend(mapping.take().filter(|_| kilobytes.trim() == "0 kB"));
        }
    }
    found
}

/// The addresses of a line that begins a mapping, and what follows them.
fn addresses(line: &str) -> Option<((usize, usize), &str)> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(((address(start)?, address(end)?), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unchanged_parts_of_the_file_are_dropped() {
        let maps = "\
            1000-3000 r--p 00000000 fe:00 7    /bin/kiln\nRss: 8 kB\nAnonymous:             0 kB\nSwap:   0 kB\nVmFlags: rd mr\n\
            3000-9000 r-xp 00002000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\nSwap: 0 kB\n\
            9000-a000 r--p 00008000 fe:00 7    /bin/kiln\nAnonymous: 4 kB\nSwap: 0 kB\n\
            a000-b000 r--p 00009000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\nSwap: 4 kB\n\
            b000-c000 rw-p 0000a000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\nSwap: 0 kB\n\
            c000-d000 r-xp 00000000 fe:00 8    /lib/libc.so.6\nAnonymous: 0 kB\nSwap: 0 kB\n\
            d000-e000 r--s 00000000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\nSwap: 0 kB\n\
            e000-f000 r--p 00000000 00:00 0\nAnonymous: 0 kB\nSwap: 0 kB\n";
        assert_eq!(unchanged(maps, "/bin/kiln"), [(0x1000, 0x3000), (0x3000, 0x9000)]);
        assert!(unchanged(maps, "").is_empty());
        assert!(unchanged("odd\n-\n1-2\nAnonymous: 0 kB\nSwap: 0 kB\n", "/bin/kiln").is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_without_its_code_goes_on() {
        let resident = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        assert!(code_bytes().unwrap() > 1 << 20);
        let before = resident();
        release_code();
        let after = resident();
        assert!(after < before, "{before} kB, then {after}");
    }
}
