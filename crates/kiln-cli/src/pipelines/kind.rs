//! The pipelines, and how to find the one that a settings file belongs to.

use std::path::Path;

use kiln_data::printable;
use toml::Table;

use crate::usage::Usage;

/// The pipelines. Each has a table of settings that no other has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Image classification.
    Classify,
    /// Segmentation.
    Segment,
    /// Decoders of text.
    Gpt,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Classify, Self::Segment, Self::Gpt];

    /// The pipeline whose table `settings` has.
    pub fn of(settings: &Table) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| settings.contains_key(kind.table()))
    }

    fn table(self) -> &'static str {
        match self {
            Self::Classify => "images",
            Self::Segment => "tiles",
            Self::Gpt => "text",
        }
    }

    /// The word of its commands, as in `train classify`.
    pub fn command(self) -> &'static str {
        match self {
            Self::Classify => "classify",
            Self::Segment => "segment",
            Self::Gpt => "gpt",
        }
    }

    /// The kind of its model, for messages.
    pub fn model(self) -> &'static str {
        match self {
            Self::Classify => "an image classifier",
            Self::Segment => "a segmentation",
            Self::Gpt => "a decoder of text",
        }
    }

    /// Fails if `settings` from `file` belong to another pipeline. Settings without a pipeline's table pass.
    ///
    /// # Errors
    /// [`Usage`] with the pipeline that the settings belong to.
    pub fn expect(self, settings: &Table, file: &Path) -> Result<(), Usage> {
        match Self::of(settings) {
            Some(found) if found != self => Err(Usage(format!(
                "config '{}' is of {}, expected {}; `train {command}` and `eval {command}` take it",
                printable(&file),
                found.model(),
                self.model(),
                command = found.command(),
            ))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_of_a_config_tell_its_pipeline() {
        let of = |text: &str| Kind::of(&text.parse().unwrap());
        assert_eq!(of("[run]\n[images]\n[model]"), Some(Kind::Classify));
        assert_eq!(of("[run]\n[tiles]\n[loss]"), Some(Kind::Segment));
        assert_eq!(of("[run]\n[text]"), Some(Kind::Gpt));
        assert_eq!(of("[run]\n[model]"), None);
    }

    #[test]
    fn settings_of_another_pipeline_are_refused_with_its_command() {
        let images: Table = "[images]".parse().unwrap();
        let text = Kind::Gpt.expect(&images, Path::new("run/config.toml")).unwrap_err().0;
        assert!(text.contains("an image classifier, expected a decoder of text") && text.contains("`train classify`"));
        assert!(Kind::Classify.expect(&images, Path::new("x")).is_ok());
        assert!(Kind::Gpt.expect(&Table::new(), Path::new("x")).is_ok());
    }
}
