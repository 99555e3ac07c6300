//! A model's results on held-out data: classes of images, continued text, and pictures of pixel classes.

use maud::{Markup, html};
use serde::{Deserialize, Serialize};

use crate::figure::percent;
use crate::html::section;

/// An image with its true and its predicted class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// The image as a PNG file in base64.
    pub png: String,
    /// The true class.
    pub truth: String,
    /// The predicted class.
    pub predicted: String,
    /// The probability that the model gives its prediction.
    pub probability: f64,
}

/// Text that a model wrote.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Text {
    /// The text that the model continues.
    pub prompt: String,
    /// The continuation.
    pub written: String,
    /// How the tokens were drawn.
    pub note: String,
}

/// A picture with its title.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The title.
    pub title: String,
    /// The picture as a PNG file in base64.
    pub png: String,
}

/// The samples of a model's results that a page shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Samples {
    /// Classified images.
    pub predictions: Vec<Prediction>,
    /// Text that continues a prompt.
    pub text: Option<Text>,
    /// Each with an image, its true and its predicted classes.
    pub pictures: Vec<Picture>,
}

impl Samples {
    /// The sections of a page.
    pub(crate) fn html(&self) -> Markup {
        let text = html! {
            @if let Some(Text { prompt, written, note }) = &self.text {
                blockquote { span class="prompt" { (prompt) } (written) }
                p class="note" { (note) }
            }
        };
        let right = self.predictions.iter().filter(|prediction| prediction.truth == prediction.predicted).count();
        let predictions = html! {
            @if !self.predictions.is_empty() {
                p class="note" { (right) " of " (self.predictions.len()) " are right." }
                div class="images" { @for prediction in &self.predictions { (prediction.html()) } }
            }
        };
        let pictures = html! {
            @for Picture { title, png } in &self.pictures {
                figure class="picture" { (image(title, png)) figcaption { (title) } }
            }
        };
        html! {
            (section("text", "Text of this model", &text))
            (section("predictions", "Predictions on held-out images", &predictions))
            (section("pictures", "Held-out images: image, truth, prediction", &pictures))
        }
    }
}

impl Prediction {
    fn html(&self) -> Markup {
        let (class, sign) = if self.truth == self.predicted { ("right", "✓") } else { ("wrong", "✗") };
        html! {
            figure class=(class) {
                (image(&self.truth, &self.png))
                figcaption {
                    b { i aria-label=(class) { (sign) } " " (self.predicted) } " " small { (percent(self.probability)) }
                    @if class == "wrong" { span { "is " (self.truth) } }
                }
            }
        }
    }
}

fn image(name: &str, png: &str) -> Markup {
    html! { img alt=(name) src={"data:image/png;base64," (png)}; }
}
