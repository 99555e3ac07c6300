//! The pages of the program's own file that are in memory: code and constants.

use std::fs;

use super::pages::drop_file_pages;

/// Takes the program's code out of the memory of the process: for the end of a phase whose code is not that of the next one, as the start of
/// a program. What runs next comes in again from the system's cache of files, in about a millisecond. Does nothing elsewhere than on Linux.
pub fn release_code() {
    for (start, end) in mapped(&["r-xp", "r--p"]) {
        drop_file_pages(start, end - start);
    }
}

/// Bytes of the program's code, in memory or not. `None` elsewhere than on Linux.
pub fn code_bytes() -> Option<u64> {
    let bytes = mapped(&["r-xp"]).into_iter().map(|(start, end)| (end - start) as u64).sum();
    (bytes > 0).then_some(bytes)
}

/// The addresses of the program's file with one of these access rights.
fn mapped(access: &[&str]) -> Vec<(usize, usize)> {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/smaps")) else {
        return vec![];
    };
    program.to_str().map(|program| unchanged(&maps, program, access)).unwrap_or_default()
}

/// The addresses at which a file is mapped with one of these access rights, and has no page that was changed since it was read.
fn unchanged(maps: &str, file: &str, access: &[&str]) -> Vec<(usize, usize)> {
    let mut found = vec![];
    let mut mapping = None;
    for line in maps.lines() {
        if let Some((range, rest)) = addresses(line) {
            let is_asked = rest.get(..4).is_some_and(|own| access.contains(&own));
            mapping = (is_asked && rest.ends_with(file)).then_some(range);
        } else if let Some(kilobytes) = line.strip_prefix("Anonymous:")
            && kilobytes.trim() == "0 kB"
        {
            found.extend(mapping.take());
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
            1000-3000 r--p 00000000 fe:00 7    /bin/kiln\nRss: 8 kB\nAnonymous:             0 kB\nVmFlags: rd mr\n\
            3000-9000 r-xp 00002000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\n\
            9000-a000 r--p 00008000 fe:00 7    /bin/kiln\nAnonymous: 4 kB\n\
            a000-b000 rw-p 00009000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\n\
            b000-c000 r-xp 00000000 fe:00 8    /lib/libc.so.6\nAnonymous: 0 kB\n\
            c000-d000 r--s 00000000 fe:00 7    /bin/kiln\nAnonymous: 0 kB\n\
            d000-e000 r--p 00000000 00:00 0\nAnonymous: 0 kB\n";
        let read_only = ["r-xp", "r--p"];
        assert_eq!(unchanged(maps, "/bin/kiln", &read_only), [(0x1000, 0x3000), (0x3000, 0x9000)]);
        assert_eq!(unchanged(maps, "/bin/kiln", &["r-xp"]), [(0x3000, 0x9000)]);
        assert!(unchanged("odd\n-\n1-2\nAnonymous: 0 kB\n", "/bin/kiln", &read_only).is_empty());
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
