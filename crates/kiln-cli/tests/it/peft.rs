//! Runs that begin with the adapters of a folder of peft.

use std::fs;

use kiln_compression::Adapters;

use super::llm::{small, trained};
use super::support::{done, fixture, json_lines, refused, text};

#[test]
fn adapters_of_peft_are_trained_further_and_sampled() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (model, data) = (small(), text(at, 40_000));
    for (number, options) in [&["--lora", "2"][..], &["--lora", "3", "--dora", "--lora-alpha", "5"]].iter().enumerate()
    {
        let name = |name: &str| format!("{name}-{number}");
        let [first, merged, given] = ["first", "merged", "given"].map(name);
        trained(at, &first, &[options, &["--max-steps", "2"][..]].concat());
        done(at, &["export", &first, "--out", &merged]);
        let adapters_of = |run: &str, folder: &str| {
            done(at, &["export", run, "--format", "peft", "--out", folder]);
            Adapters::load(at.join(folder), str::to_owned).unwrap()
        };
        let expected = adapters_of(&first, &given);
        let sample = |options: &[&str]| {
            let greedy = ["--prompt", "Call me", "--tokens", "8", "--temperature", "0"];
            json_lines(at, &[&["sample"], options, &greedy[..]].concat())[0]["text"].clone()
        };
        assert_eq!(sample(&[&model, "--adapters", &given]), sample(&[&merged]));
        for (kind, base) in [("plain", &[][..]), ("coded", &["--base-bits", "4"])] {
            let [run, out] = [format!("{kind}-{number}"), format!("{kind}-{number} adapters")];
            let still = ["--adapters", &given, "--learning-rate", "1e-30", "--max-steps", "2"];
            trained(at, &run, &[&still[..], base].concat());
            let found = adapters_of(&run, &out);
            assert!(found == expected, "{run} begins with other adapters");
        }
        // A run that goes on has its adapters in its checkpoint.
        trained(at, &name("parts"), &["--adapters", &given, "--max-steps", "1"]);
        trained(at, &name("whole"), &["--adapters", &given, "--max-steps", "2"]);
        fs::remove_dir_all(at.join(&given)).unwrap();
        let parts = name("parts");
        done(at, &["train", "llm", "--resume", &parts, "--max-steps", "2"]);
        let [parts, whole] = ["parts", "whole"].map(|run| adapters_of(&name(run), &name(&format!("{run} adapters"))));
        assert!(parts == whole && parts != expected, "a run that was resumed has other adapters");
    }

    // Of a layer that the model does not have.
    let other = Adapters::load(fixture("decoders/llama-lora"), str::to_owned).unwrap();
    other.save(at.join("other"), |path| path.replace("layers.1", "layers.7")).unwrap();
    let (other, data) = ("other", data.to_str().unwrap());
    let run = ["train", "llm", "--model", &model, "--data", data, "--out", "run", "--adapters"];
    refused(at, &[&run[..], &[&model]].concat(), 2, &["adapter_config.json", "expected a folder of peft"]);
    refused(at, &[&run[..], &[other]].concat(), 2, &["layers.7"]);
    refused(at, &[&run[..], &[other, "--lora", "2"]].concat(), 2, &["cannot be used with"]);
    refused(at, &["sample", "plain-0", "--adapters", other], 2, &["is a run"]);
    refused(at, &["train", "llm", "--from", "plain-0", "--adapters", other], 2, &["expected one of the two"]);
    refused(at, &["train", "llm", "--resume", "plain-0", "--adapters", other], 2, &["--adapters cannot change"]);
    // A settings file whose targets are fewer, or whose rank is another.
    let config = fs::read_to_string(at.join("plain-0/config.toml")).unwrap();
    let layer = "\"layers.0.mlp.down_proj.weight\",";
    assert!(config.contains(layer), "{config}");
    for (change, code, part) in
        [((layer, ""), 1, "no target names it"), (("rank = 2", "rank = 3"), 2, "compression.lora is rank 3")]
    {
        fs::write(at.join("config.toml"), config.replace(change.0, change.1)).unwrap();
        fs::create_dir_all(at.join("given-0")).unwrap();
        for file in ["adapter_config.json", "adapter_model.safetensors"] {
            fs::copy(at.join("plain-0 adapters").join(file), at.join("given-0").join(file)).unwrap();
        }
        refused(at, &["train", "llm", "--config", "config.toml", "--out", "run"], code, &[part]);
    }
    refused(at, &["sample", &model, "--adapters", other], 2, &["layers.7"]);
    assert!(!at.join("run").exists());
}
