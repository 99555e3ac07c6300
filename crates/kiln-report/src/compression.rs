//! The page of a smaller model: its figures before and after, and its layers.

use maud::html;
use serde::{Deserialize, Serialize};

use crate::html::{Tile, document, section, table, tiles};

/// What compressing a model changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CompressionPage {
    /// The heading.
    pub title: String,
    /// Figures: name, before, after.
    pub figures: Vec<[String; 3]>,
    /// The requested settings.
    pub facts: Vec<(String, String)>,
    /// The names of the columns of a table about the layers.
    pub columns: Vec<String>,
    /// The rows of this table. The first column names the layer.
    pub rows: Vec<Vec<String>>,
}

impl CompressionPage {
    /// The page: one file that needs no network.
    pub fn html(&self) -> String {
        let tile = |[name, before, after]: &[String; 3]| {
            let (name, value, note) = (name.clone(), after.clone(), format!("before: {before}"));
            Tile { id: "", name, value, note, ..Tile::default() }
        };
        let figures: Vec<Tile> = self.figures.iter().map(tile).collect();
        let facts: Vec<Vec<String>> =
            self.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect();
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        let layers = html! { @if !self.rows.is_empty() { (table("layers", &columns, &self.rows)) } };
        let body = html! {
            header { h1 { (self.title) } }
            (tiles(&figures))
            main {
                (section("settings", "Settings", &table("facts", &[], &facts)))
                (section("rows", "Layers", &layers))
            }
        };
        document(&self.title, &body, &[], &[])
    }
}
