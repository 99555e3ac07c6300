//! Values of a template as JSON, with the spaces and the escapes of Python's `json.dumps`.

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// The options of `json.dumps` that a template may give.
struct Style {
    indent: Option<usize>,
    ascii: bool,
    sorted: bool,
    separators: [String; 2],
}

/// The filter `tojson` of transformers.
pub(super) fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let separators = match separators.map(<[String; 2]>::try_from) {
        Some(Ok(separators)) => separators,
        Some(Err(_)) => return Err(Error::new(ErrorKind::InvalidOperation, "separators are not two texts")),
        None => [if indent.is_some() { "," } else { ", " }, ": "].map(str::to_owned),
    };
    let [ascii, sorted] = ["ensure_ascii", "sort_keys"].map(|name| options.get::<Option<bool>>(name));
    let style = Style { indent, ascii: ascii?.unwrap_or(false), sorted: sorted?.unwrap_or(false), separators };
    options.assert_all_used()?;
    let mut text = String::new();
    style.write(&value, 0, &mut text)?;
    Ok(text)
}

impl Style {
    fn write(&self, value: &Value, depth: usize, text: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => text.push_str("null"),
            ValueKind::Bool | ValueKind::Number => text.push_str(&value.to_string().to_ascii_lowercase()),
            ValueKind::String => text.push_str(&self.quoted(value.as_str().unwrap_or_default())),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item)).collect();
                self.write_all(['[', ']'], items, depth, text)?;
            }
            ValueKind::Map => {
                let mut items = vec![];
                for key in value.try_iter()? {
                    items.push((Some(key.to_string()), value.get_item(&key)?));
                }
                if self.sorted {
                    items.sort_by(|(one, _), (other, _)| one.cmp(other));
                }
                self.write_all(['{', '}'], items, depth, text)?;
            }
            other => return Err(Error::new(ErrorKind::InvalidOperation, format!("{other} cannot be written as JSON"))),
        }
        Ok(())
    }

    fn write_all(
        &self,
        [open, close]: [char; 2],
        items: Vec<(Option<String>, Value)>,
        depth: usize,
        text: &mut String,
    ) -> Result<(), Error> {
        text.push(open);
        let [between, behind_key] = &self.separators;
        let line = |depth: usize, text: &mut String| {
            if let Some(indent) = self.indent {
                text.push('\n');
                text.push_str(&" ".repeat(indent * depth));
            }
        };
        let is_empty = items.is_empty();
        for (number, (key, item)) in items.into_iter().enumerate() {
            if number > 0 {
                text.push_str(between);
            }
            line(depth + 1, text);
            if let Some(key) = key {
                text.push_str(&self.quoted(&key));
                text.push_str(behind_key);
            }
            self.write(&item, depth + 1, text)?;
        }
        if !is_empty {
            line(depth, text);
        }
        text.push(close);
        Ok(())
    }

    fn quoted(&self, text: &str) -> String {
        let quoted = serde_json::Value::from(text).to_string();
        match self.ascii {
            true => quoted.chars().flat_map(ascii).collect(),
            false => quoted,
        }
    }
}

/// A character of JSON in ASCII.
fn ascii(character: char) -> Vec<char> {
    match character.is_ascii() {
        true => vec![character],
        false => {
            let units: Vec<u16> = character.encode_utf16(&mut [0; 2]).to_vec();
            units.into_iter().flat_map(|unit| format!("\\u{unit:04x}").chars().collect::<Vec<_>>()).collect()
        }
    }
}
