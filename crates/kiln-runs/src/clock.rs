//! Times as the files of runs have them.

use time::OffsetDateTime;

/// The present time in UTC, as in `2026-11-21T08:30:00Z`.
pub fn now() -> String {
    written(OffsetDateTime::now_utc())
}

/// A time in UTC, as in `2026-11-21T08:30:00Z`.
pub(crate) fn written(time: OffsetDateTime) -> String {
    let (date, hour, minute, second) = (time.date(), time.hour(), time.minute(), time.second());
    format!("{date}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_written_year_first() {
        let time = OffsetDateTime::from_unix_timestamp(951_782_400 + 3_723).unwrap();
        assert_eq!(written(time), "2000-02-29T01:02:03Z");
        assert_eq!(now().len(), 20);
    }
}
