//! Dates as Python's `strftime` writes them.

use time::OffsetDateTime;

const DAYS: [&str; 7] = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The present time, in UTC, by a format of `strftime`. Directives that are not known stay as they are.
pub(super) fn now(format: &str) -> String {
    written(OffsetDateTime::now_utc(), format)
}

fn written(at: OffsetDateTime, format: &str) -> String {
    let (day, month) =
        (DAYS[usize::from(at.weekday().number_days_from_monday())], MONTHS[u8::from(at.month()) as usize - 1]);
    let (mut text, mut rest) = (String::new(), format.chars());
    while let Some(character) = rest.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        text += &match rest.next() {
            Some('Y') => format!("{:04}", at.year()),
            Some('y') => format!("{:02}", at.year() % 100),
            Some('m') => format!("{:02}", u8::from(at.month())),
            Some('B') => month.to_owned(),
            Some('b') => month[..3].to_owned(),
            Some('d') => format!("{:02}", at.day()),
            Some('j') => format!("{:03}", at.ordinal()),
            Some('A') => day.to_owned(),
            Some('a') => day[..3].to_owned(),
            Some('H') => format!("{:02}", at.hour()),
            Some('I') => format!("{:02}", (at.hour() + 11) % 12 + 1),
            Some('p') => if at.hour() < 12 { "AM" } else { "PM" }.to_owned(),
            Some('M') => format!("{:02}", at.minute()),
            Some('S') => format!("{:02}", at.second()),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_python_writes_it() {
        let at = OffsetDateTime::from_unix_timestamp(1_709_215_509).unwrap(); // 2024-02-29 14:05:09
        for (format, expected) in [
            ("%d %b %Y", "29 Feb 2024"),
            ("%Y-%m-%d %H:%M:%S", "2024-02-29 14:05:09"),
            ("%A, %B %d, %y %I %p", "Thursday, February 29, 24 02 PM"),
            ("%a %j %% %q %", "Thu 060 % %q %"),
        ] {
            assert_eq!(written(at, format), expected);
        }
    }
}
