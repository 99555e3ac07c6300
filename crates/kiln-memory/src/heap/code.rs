//! The pages of the program's own file that are in memory: code and constants.

use std::fs;

use super::pages::drop_file_pages;

/// Takes the program's code out of the memory of the process: for the end of a phase whose code is not that of the next one, as the start of
/// a program. What runs next comes in again from the system's cache of files, in about a millisecond. Does nothing elsewhere than on Linux.
pub fn release_code() {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/smaps")) else {
        return;
    };
    for (start, end) in program.to_str().into_iter().flat_map(|program| unchanged(&maps, program)) {
        drop_file_pages(start, end - start);
    }
}

/// The addresses at which a file is mapped, can not be written, and has no page that was changed since it was read.
fn unchanged(maps: &str, file: &str) -> Vec<(usize, usize)> {
    let mut found = vec![];
    let mut mapping = None;
    for line in maps.lines() {
        if let Some((range, rest)) = addresses(line) {
            let is_read_only = matches!(rest.get(..4), Some("r-xp" | "r--p"));
            mapping = (is_read_only && rest.ends_with(file)).then_some(range);
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
        assert_eq!(unchanged(maps, "/bin/kiln"), [(0x1000, 0x3000), (0x3000, 0x9000)]);
        assert!(unchanged("odd\n-\n1-2\nAnonymous: 0 kB\n", "/bin/kiln").is_empty());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_program_without_its_code_goes_on() {
        let resident = || {
            let text = fs::read_to_string("/proc/self/status").unwrap();
            let line = text.lines().find_map(|line| line.strip_prefix("RssFile:")).unwrap();
            line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap()
        };
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let program = fs::read_link("/proc/self/exe").unwrap();
        let bytes: usize = unchanged(&maps, program.to_str().unwrap()).iter().map(|(start, end)| end - start).sum();
        assert!(bytes > 1 << 20, "{bytes}");
        let before = resident();
        release_code();
        let after = resident();
        assert!(after < before, "{before} kB, then {after}");
    }
}
