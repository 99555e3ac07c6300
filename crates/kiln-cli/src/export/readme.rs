//! README.md of an exported folder: how PyTorch loads the model, and how it writes ONNX.

use super::folder::WEIGHTS;
use super::python::Loading;

/// The Python file that makes a model which no library has by name.
pub(super) const MODULE: &str = "model.py";

/// The content of README.md.
pub(super) struct Readme<'a> {
    pub(super) title: String,
    pub(super) loading: Loading,
    /// Packages to install beside torch and safetensors.
    pub(super) packages: &'a str,
    /// Lines that prepare an input.
    pub(super) input: Vec<String>,
    /// The line that runs the model.
    pub(super) call: String,
    /// Further paragraphs.
    pub(super) notes: Vec<String>,
    pub(super) onnx: Vec<String>,
}

impl Readme<'_> {
    /// The text of README.md, and of [`MODULE`] if there is one.
    pub(super) fn texts(&self) -> (String, Option<String>) {
        let (load, module) = match &self.loading {
            Loading::FromConfig { imports, expression } => (
                [imports.iter().map(|line| (*line).to_owned()).collect(), vec![format!("model = {expression}.eval()")]]
                    .concat(),
                None,
            ),
            Loading::Built { imports, lines } => {
                let (mut load, build, module) = match &lines[..] {
                    [line] => {
                        let used = imports.iter().filter(|import| line.contains(import.trim_start_matches("import ")));
                        (used.map(|line| (*line).to_owned()).collect::<Vec<_>>(), line.clone(), None)
                    }
                    _ => (
                        vec!["from model import build".to_owned()],
                        "model = build()".to_owned(),
                        Some(python(imports, lines)),
                    ),
                };
                load.push("from safetensors.torch import load_file".into());
                load.push(build);
                load.push(format!("model.load_state_dict(load_file(\"{WEIGHTS}\")); model.eval()"));
                (load, module)
            }
        };
        let block = |lines: &[String]| format!("```python\n{}\n```\n", lines.join("\n"));
        let mut text = format!(
            "# {}\n\nA model trained with Kiln, with the parameter names of its PyTorch implementation.\n\n",
            self.title
        );
        text += &format!(
            "In this directory, after `pip install torch safetensors {}`:\n\n{}\n",
            self.packages,
            block(&load)
        );
        text +=
            &format!("An input, and the output:\n\n{}", block(&[self.input.clone(), vec![self.call.clone()]].concat()));
        for note in &self.notes {
            text += &format!("\n{note}\n");
        }
        text += "\n## ONNX\n\nWith the `model` of above, after `pip install onnx onnxscript`:\n\n";
        text += &block(&self.onnx);
        (text, module)
    }
}

/// A Python file with a function `build`.
fn python(imports: &[&str], lines: &[String]) -> String {
    let body: Vec<String> = lines.iter().map(|line| format!("    {line}\n")).collect();
    let text = "\"\"\"The architecture of model.safetensors, for which no library has a name.\"\"\"";
    format!("{text}\n{}\n\n\ndef build():\n{}    return model\n", imports.join("\n"), body.concat())
}
