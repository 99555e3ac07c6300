//! Labels and preprocessing of image models, in Hugging Face's format.

use kiln_data::{Crop, Normalize, Transform};
use serde_json::{Map, Value, json};

/// PIL's number of the bilinear filter.
const BILINEAR: u8 = 2;

/// Classes by number, and numbers by class. Without names the classes have transformers' default names.
pub(super) fn labels(names: Option<&[String]>, count: usize) -> Value {
    let names: Vec<String> = match names {
        Some(names) => names.to_vec(),
        None => (0..count).map(|class| format!("LABEL_{class}")).collect(),
    };
    let of_id: Map<String, Value> =
        names.iter().enumerate().map(|(id, name)| (id.to_string(), name.clone().into())).collect();
    let of_label: Map<String, Value> = names.into_iter().enumerate().map(|(id, name)| (name, id.into())).collect();
    json!({ "id2label": of_id, "label2id": of_label })
}

/// The preprocessing of an image for a classifier.
pub(super) struct Preprocessing {
    /// Pixels a side.
    pub(super) size: usize,
    /// Pixels of the shorter side that an image is resized to before its middle is cut out.
    pub(super) resize: usize,
    pub(super) normalize: Normalize,
}

impl Preprocessing {
    /// The preprocessing of an evaluation: the resized square in the middle.
    pub(super) fn new(size: usize, normalize: Normalize) -> Self {
        let fraction = match Transform::evaluation(size).crop {
            Crop::Center(fraction) => fraction,
            _ => 1.0,
        };
        Self { size, resize: (size as f64 / fraction).round() as usize, normalize }
    }

    /// The share of the shorter side that is visible.
    pub(super) fn crop_share(&self) -> f64 {
        self.size as f64 / self.resize as f64
    }

    /// `preprocessor_config.json`, which transformers' `CLIPImageProcessor` reads.
    pub(super) fn json(&self) -> Value {
        let Self { size, resize, normalize } = self;
        json!({
            "image_processor_type": "CLIPImageProcessor",
            "do_convert_rgb": normalize.mean.len() == 3,
            "do_resize": true,
            "size": { "shortest_edge": resize },
            "resample": BILINEAR,
            "do_center_crop": true,
            "crop_size": { "height": size, "width": size },
            "do_rescale": true,
            "rescale_factor": 1.0 / 255.0,
            "do_normalize": true,
            "image_mean": rounded(&normalize.mean),
            "image_std": rounded(&normalize.std),
        })
    }

    /// The preprocessing as lines of Python with torchvision's transforms.
    pub(super) fn python(&self) -> Vec<String> {
        let Self { size, resize, normalize } = self;
        let channels = normalize.mean.len();
        let mode = if channels == 1 { "L" } else { "RGB" };
        vec![
            "from PIL import Image".into(),
            "from torchvision import transforms".into(),
            "prepare = transforms.Compose([".into(),
            format!("    transforms.Resize({resize}), transforms.CenterCrop({size}), transforms.ToTensor(),"),
            format!("    transforms.Normalize({:?}, {:?}),", rounded(&normalize.mean), rounded(&normalize.std)),
            "])".into(),
            format!("images = prepare(Image.open(\"photo.jpg\").convert(\"{mode}\")).unsqueeze(0)"),
        ]
    }
}

/// Rounds f32 numbers to their shortest decimal form.
pub(super) fn rounded(numbers: &[f32]) -> Vec<f64> {
    numbers.iter().map(|number| number.to_string().parse().unwrap_or(f64::from(*number))).collect()
}

#[cfg(test)]
mod tests {
    use kiln_data::Normalize;

    use super::{Preprocessing, labels};

    #[test]
    fn preprocessing_is_that_of_an_evaluation() {
        let large = Preprocessing::new(224, Normalize::for_channels(3));
        assert_eq!((large.resize, large.crop_share()), (256, 0.875));
        assert_eq!(large.json()["image_mean"], serde_json::json!([0.485, 0.456, 0.406]));
        assert_eq!(Preprocessing::new(28, Normalize::for_channels(1)).resize, 28);
    }

    #[test]
    fn labels_go_both_ways() {
        let both = labels(Some(&["cat".into(), "dog".into()]), 2);
        assert_eq!((both["id2label"]["1"].as_str(), both["label2id"]["dog"].as_u64()), (Some("dog"), Some(1)));
        assert_eq!(labels(None, 3)["id2label"]["2"], "LABEL_2");
    }
}
