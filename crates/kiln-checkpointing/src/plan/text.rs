//! Plans as text: the short form of command lines, and a description for people.

use std::fmt;

use super::segments::{Mode, Plan, PlanSegment};
use crate::Error;

impl Plan {
    /// The plan that `text` names for a chain of `blocks` blocks:
    ///
    /// - `none`: [`Plan::none`];
    /// - `every:K`: [`Plan::every`] with segments of K blocks;
    /// - `offload` or `offload:K`: [`Plan::offload`] with segments of 1 or K blocks;
    /// - `stream` or `stream:K`: [`Plan::stream`] with segments of 1 or K blocks;
    /// - a list of all segments, such as `0..3 recompute, 3..8 plain`.
    ///
    /// `Display` writes the same forms: the parsed text of a plan is that plan.
    ///
    /// ```
    /// use kiln_checkpointing::Plan;
    ///
    /// assert_eq!(Plan::parse("every:2", 5)?, Plan::every(5, 2)?);
    /// let plan = Plan::parse("0..3 recompute, 3..8 plain", 8)?;
    /// assert_eq!(plan.to_string(), "0..3 recompute, 3..8 plain");
    /// # Ok::<(), kiln_checkpointing::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownPlan`] for any other text, [`Error::EmptySegment`] for segments of 0 blocks, [`Error::InvalidPlan`] for
    /// a list that leaves a gap, and [`Error::PlanLength`] for a list of another number of blocks.
    pub fn parse(text: &str, blocks: usize) -> Result<Self, Error> {
        let unknown = || Error::UnknownPlan { text: text.to_owned() };
        match text.trim().split_once(':') {
            None if text.trim() == "none" => return Ok(Self::none(blocks)),
            None if text.trim() == "offload" => return Self::offload(blocks, 1),
            None if text.trim() == "stream" => return Self::stream(blocks, 1),
            Some(("every", length)) => return Self::every(blocks, length.parse().map_err(|_| unknown())?),
            Some(("offload", length)) => return Self::offload(blocks, length.parse().map_err(|_| unknown())?),
            Some(("stream", length)) => return Self::stream(blocks, length.parse().map_err(|_| unknown())?),
            _ => {}
        }
        let segments: Option<Vec<PlanSegment>> = text.split(',').map(segment).collect();
        let plan = Self::try_from(segments.ok_or_else(unknown)?)?;
        if plan.blocks() != blocks {
            return Err(Error::PlanLength { plan: plan.blocks(), chain: blocks });
        }
        Ok(plan)
    }

    /// The plan as one line for people: `blocks 0 to 7 of 12 recomputed in segments of 2`.
    pub fn describe(&self) -> String {
        let mut parts: Vec<String> = vec![];
        let runs = self.segments().chunk_by(|a, b| a.mode == b.mode);
        for run in runs.filter(|run| run[0].mode != Mode::Plain) {
            let (first, end) = (run[0].blocks.start, run[run.len() - 1].blocks.end);
            let of = if parts.is_empty() { format!(" of {}", self.blocks()) } else { String::new() };
            let blocks = match end - first {
                1 => format!("block {first}{of}"),
                _ => format!("blocks {first} to {}{of}", end - 1),
            };
            let lengths = || run.iter().map(|segment| segment.blocks.len());
            // The last segment of uniform ones may be short.
            let uniform = lengths().rev().skip(1).all(|length| length == run[0].blocks.len());
            let shortest = lengths().min().unwrap_or(0);
            let longest = lengths().max().unwrap_or(0);
            let how = match (run.len(), longest) {
                (1, 1) => String::new(),
                (1, _) => " in one segment".to_owned(),
                (_, 1) => " one by one".to_owned(),
                _ if uniform && longest == run[0].blocks.len() => format!(" in segments of {longest}"),
                (count, _) => format!(" in {count} segments of {shortest} to {longest}"),
            };
            let (done, from) = match run[0].mode {
                Mode::Offload => ("recomputed", " from inputs in host memory"),
                Mode::Stream => ("streamed", " from a store"),
                Mode::Plain | Mode::Recompute => ("recomputed", ""),
            };
            parts.push(format!("{blocks} {done}{how}{from}"));
        }
        match parts.is_empty() {
            true => format!("all {} blocks keep their activations", self.blocks()),
            false => parts.join("; "),
        }
    }
}

/// Reads `0..3 recompute`.
fn segment(text: &str) -> Option<PlanSegment> {
    let (blocks, mode) = text.trim().split_once(' ')?;
    let (start, end) = blocks.split_once("..")?;
    let modes = [Mode::Plain, Mode::Recompute, Mode::Offload, Mode::Stream];
    let mode = modes.into_iter().find(|known| name(*known) == mode.trim())?;
    Some(PlanSegment { blocks: start.parse().ok()?..end.parse().ok()?, mode })
}

fn name(mode: Mode) -> &'static str {
    match mode {
        Mode::Plain => "plain",
        Mode::Recompute => "recompute",
        Mode::Offload => "offload",
        Mode::Stream => "stream",
    }
}

impl fmt::Display for Plan {
    /// The text that [`Plan::parse`] reads; the short form where there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.segments().first().filter(|first| first.mode != Mode::Plain) else {
            return if self.recomputed() == 0 { f.write_str("none") } else { list(self, f) };
        };
        let length = first.blocks.len();
        if Self::every(self.blocks(), length).as_ref() == Ok(self) {
            write!(f, "every:{length}")
        } else if Self::offload(self.blocks(), length).as_ref() == Ok(self) {
            if length == 1 { f.write_str("offload") } else { write!(f, "offload:{length}") }
        } else if Self::stream(self.blocks(), length).as_ref() == Ok(self) {
            if length == 1 { f.write_str("stream") } else { write!(f, "stream:{length}") }
        } else {
            list(self, f)
        }
    }
}

fn list(plan: &Plan, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (index, segment) in plan.segments().iter().enumerate() {
        let comma = if index == 0 { "" } else { ", " };
        write!(f, "{comma}{}..{} {}", segment.blocks.start, segment.blocks.end, name(segment.mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_plan() -> impl Strategy<Value = Plan> {
        let modes = prop_oneof![Just(Mode::Plain), Just(Mode::Recompute), Just(Mode::Offload), Just(Mode::Stream)];
        prop::collection::vec((1usize..5, modes), 0..8).prop_map(|lengths| {
            let mut start = 0;
            Plan::new(lengths.into_iter().map(|(length, mode)| {
                let blocks = start..start + length;
                start = blocks.end;
                PlanSegment { blocks, mode }
            }))
        })
    }

    proptest! {
        #[test]
        fn the_text_of_a_plan_is_parsed_as_that_plan(plan in any_plan(), blocks in 0usize..40, length in 1usize..45) {
            let uniform = [Plan::every, Plan::offload, Plan::stream].map(|plan| plan(blocks, length).unwrap());
            for plan in uniform.into_iter().chain([plan]) {
                let text = plan.to_string();
                prop_assert_eq!(Plan::parse(&text, plan.blocks()), Ok(plan), "{}", text);
            }
        }
    }

    #[test]
    fn plans_with_a_short_form_are_written_in_it() {
        for text in
            ["none", "every:1", "every:5", "offload", "offload:3", "stream", "stream:5", "0..3 recompute, 3..12 plain"]
        {
            assert_eq!(Plan::parse(text, 12).unwrap().to_string(), text);
        }
        assert_eq!(Plan::parse("every:12", 12).unwrap().to_string(), "none", "one segment, which is plain");
        assert_eq!(Plan::parse(" 0..2  recompute ,2..3 plain", 3).unwrap(), Plan::every(3, 2).unwrap());
    }

    #[test]
    fn other_texts_are_refused_with_the_forms_that_are_accepted() {
        for text in ["", "all", "every", "every:", "every:-1", "offload:x", "0..2", "0..2 again", "2 plain", "none:1"] {
            let refused = Plan::parse(text, 4).unwrap_err();
            assert_eq!(refused, Error::UnknownPlan { text: text.into() });
            assert!(refused.to_string().contains("every:K"), "{refused}");
        }
        assert_eq!(Plan::parse("every:0", 4), Err(Error::EmptySegment));
        assert!(matches!(Plan::parse("0..2 plain, 3..4 plain", 4), Err(Error::InvalidPlan { index: 1, .. })));
        assert_eq!(Plan::parse("0..3 plain", 4), Err(Error::PlanLength { plan: 3, chain: 4 }));
    }

    #[test]
    fn descriptions_are_plain_words() {
        let cases = [
            ("none", "all 12 blocks keep their activations"),
            ("every:1", "blocks 0 to 10 of 12 recomputed one by one"),
            ("every:5", "blocks 0 to 9 of 12 recomputed in segments of 5"),
            ("every:8", "blocks 0 to 7 of 12 recomputed in one segment"),
            ("offload:4", "blocks 0 to 7 of 12 recomputed in segments of 4 from inputs in host memory"),
            ("stream", "blocks 0 to 11 of 12 streamed one by one from a store"),
            ("0..2 recompute, 2..3 recompute, 3..12 plain", "blocks 0 to 2 of 12 recomputed in segments of 2"),
            ("0..1 recompute, 1..4 recompute, 4..12 plain", "blocks 0 to 3 of 12 recomputed in 2 segments of 1 to 3"),
            (
                "0..3 recompute, 3..5 plain, 5..6 offload, 6..12 plain",
                "blocks 0 to 2 of 12 recomputed in one segment; block 5 recomputed from inputs in host memory",
            ),
        ];
        for (text, words) in cases {
            assert_eq!(Plan::parse(text, 12).unwrap().describe(), words);
        }
    }
}
