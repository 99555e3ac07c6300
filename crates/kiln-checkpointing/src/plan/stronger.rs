//! Plans to fall back on when memory runs out under another one.

use super::segments::{Mode, Plan};

impl Plan {
    /// Plans that keep less than this one, each less than the one before: segments of about sqrt(n) of n blocks, then segments
    /// of one. Inputs stay in host memory if this plan moves any there. Empty when nothing keeps less.
    ///
    /// ```
    /// use kiln_checkpointing::Plan;
    ///
    /// let texts: Vec<String> = Plan::none(16).stronger().iter().map(Plan::to_string).collect();
    /// assert_eq!(texts, ["every:4", "every:1"]);
    /// assert!(Plan::every(16, 1)?.stronger().is_empty());
    /// # Ok::<(), kiln_checkpointing::Error>(())
    /// ```
    pub fn stronger(&self) -> Vec<Self> {
        let blocks = self.blocks();
        let offloads = self.segments().iter().any(|segment| segment.mode == Mode::Offload);
        let uniform = if offloads { Self::offload } else { Self::every };
        let middle = ((blocks as f64).sqrt().round() as usize).max(1);
        let mut plans: Vec<Self> = vec![];
        for plan in [middle, 1].into_iter().filter_map(|length| uniform(blocks, length).ok()) {
            if keeps_less(&plan, plans.last().unwrap_or(self)) {
                plans.push(plan);
            }
        }
        plans
    }
}

/// Whether a plan recomputes more blocks than another, or as many in shorter segments.
fn keeps_less(plan: &Plan, than: &Plan) -> bool {
    let longest = |plan: &Plan| {
        let again = plan.segments().iter().filter(|segment| segment.mode != Mode::Plain);
        std::cmp::Reverse(again.map(|segment| segment.blocks.len()).max())
    };
    (plan.recomputed(), longest(plan)) > (than.recomputed(), longest(than))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn texts(plan: &str, blocks: usize) -> Vec<String> {
        Plan::parse(plan, blocks).unwrap().stronger().iter().map(Plan::to_string).collect()
    }

    #[test]
    fn each_plan_keeps_less_than_the_one_before() {
        assert_eq!(texts("none", 12), ["every:3", "every:1"]);
        assert_eq!(texts("every:6", 12), ["every:3", "every:1"]);
        assert_eq!(texts("every:3", 12), ["every:1"]);
        assert_eq!(texts("0..9 recompute, 9..12 plain", 12), ["every:3", "every:1"]);
        assert_eq!(texts("0..11 recompute, 11..12 plain", 12), ["every:1"]);
        assert_eq!(texts("offload:6", 12), ["offload:3", "offload"]);
        assert_eq!(texts("every:1", 12), [""; 0]);
        assert_eq!(texts("offload", 12), [""; 0]);
        assert_eq!(texts("none", 2), ["every:1"]);
        assert_eq!(texts("none", 1), [""; 0]);
        assert_eq!(texts("none", 0), [""; 0]);
    }

    proptest! {
        #[test]
        fn the_last_plan_has_no_stronger_one(blocks in 0usize..60, length in 1usize..60) {
            let first = Plan::every(blocks, length).unwrap();
            let plans = first.stronger();
            prop_assert!(plans.iter().all(|plan| plan.blocks() == blocks));
            let recomputed: Vec<usize> = std::iter::once(&first).chain(&plans).map(Plan::recomputed).collect();
            prop_assert!(recomputed.is_sorted());
            prop_assert!(plans.last().unwrap_or(&first).stronger().is_empty());
        }
    }
}
