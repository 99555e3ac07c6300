//! A model's results on some held-out data: classes of images, continued text, and pictures of pixel classes.

use std::fmt::Write;

use super::document::{escape, section};
use super::units::percent;

/// An image with its true and its predicted class.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Prediction {
    /// The image as a PNG file in base64.
    pub(crate) png: String,
    pub(crate) truth: String,
    pub(crate) predicted: String,
    /// The probability that the model gives its prediction.
    pub(crate) probability: f64,
}

/// Text that a model wrote.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Text {
    /// The text that the model continues.
    pub(crate) prompt: String,
    /// The continuation.
    pub(crate) written: String,
    /// How the tokens were drawn.
    pub(crate) note: String,
}

/// A picture with its title.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Picture {
    pub(crate) title: String,
    /// The picture as a PNG file in base64.
    pub(crate) png: String,
}

/// The samples of a model's results that a page shows.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Samples {
    pub(crate) predictions: Vec<Prediction>,
    pub(crate) text: Option<Text>,
    /// Each with an image, its true and its predicted classes.
    pub(crate) pictures: Vec<Picture>,
}

impl Samples {
    /// The sections of a page.
    pub(super) fn html(&self) -> String {
        let text = self.text.as_ref().map(text).unwrap_or_default();
        [
            section("text", "Text of this model", &text),
            section("predictions", "Predictions on held-out images", &predictions(&self.predictions)),
            section("pictures", "Held-out images: image, truth, prediction", &pictures(&self.pictures)),
        ]
        .concat()
    }
}

fn text(Text { prompt, written, note }: &Text) -> String {
    let (prompt, written, note) = (escape(prompt), escape(written), escape(note));
    format!("<blockquote><span class=\"prompt\">{prompt}</span>{written}</blockquote><p class=\"note\">{note}</p>")
}

fn predictions(predictions: &[Prediction]) -> String {
    if predictions.is_empty() {
        return String::new();
    }
    let right = predictions.iter().filter(|prediction| prediction.is_right()).count();
    let mut html = format!("<p class=\"note\">{right} of {} are right.</p><div class=\"images\">", predictions.len());
    for prediction in predictions {
        let (truth, predicted) = (escape(&prediction.truth), escape(&prediction.predicted));
        let (class, sign, is) = match prediction.is_right() {
            true => ("right", "✓", String::new()),
            false => ("wrong", "✗", format!("<span>is {truth}</span>")),
        };
        let _ = write!(
            html,
            "<figure class=\"{class}\"><img alt=\"{truth}\" src=\"data:image/png;base64,{}\"><figcaption>\
             <b><i aria-label=\"{class}\">{sign}</i> {predicted}</b> <small>{}</small>{is}</figcaption></figure>",
            prediction.png,
            percent(prediction.probability)
        );
    }
    html + "</div>"
}

impl Prediction {
    fn is_right(&self) -> bool {
        self.truth == self.predicted
    }
}

fn pictures(pictures: &[Picture]) -> String {
    let mut html = String::new();
    for Picture { title, png } in pictures {
        let title = escape(title);
        let _ = write!(
            html,
            "<figure class=\"picture\"><img alt=\"{title}\" src=\"data:image/png;base64,{png}\">\
             <figcaption>{title}</figcaption></figure>"
        );
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_prediction_names_the_true_class() {
        let prediction = |predicted: &str| Prediction {
            png: "AAAA".into(),
            truth: "cat & dog".into(),
            predicted: predicted.into(),
            probability: 0.876,
        };
        let samples = Samples { predictions: vec![prediction("cat & dog"), prediction("<fox>")], ..Samples::default() };
        let html = samples.html();
        assert!(html.contains("1 of 2 are right"), "{html}");
        assert_eq!(html.matches("class=\"wrong\"").count(), 1);
        assert!(html.contains("&lt;fox&gt;") && html.contains("is cat &amp; dog") && html.contains("87.6 %"), "{html}");
        assert_eq!(Samples::default().html(), "");
    }

    #[test]
    fn written_text_stands_behind_its_prompt() {
        let text = Text { prompt: "Call me".into(), written: " <Ishmael>".into(), note: "greedy".into() };
        let html = Samples { text: Some(text), ..Samples::default() }.html();
        assert!(html.contains("Call me</span> &lt;Ishmael&gt;"), "{html}");
    }
}
