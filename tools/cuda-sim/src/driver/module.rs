//! Modules: PTX that a program loads, judged as a driver judges it, kept on request, assembled on request, parsed to run.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::json;

use super::assembler::{Resources, Verdict, assemble};
use super::code::{Answer, Code};
use super::fault::Operation;
use super::handles::Handle;
use super::header::{Family, Header, Target, newest_ptx};
use super::log::with_process;
use super::mapping::Mapping;
use super::objects::{Function, Module, Program};
use super::settings::Execution;
use super::sim::Sim;
use super::space::{Allocation, Owner};
use crate::ptx;

/// Why a module is refused: the code, and the words for the program's error log.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) code: Code,
    pub(crate) words: String,
}

impl From<Code> for Refusal {
    fn from(code: Code) -> Self {
        Self { code, words: String::new() }
    }
}

/// Whether a GPU and driver take a module's target and version, from its header alone.
///
/// # Errors
/// `NO_BINARY_FOR_GPU` and `UNSUPPORTED_PTX_VERSION`, with words.
fn accept(header: &Header, capability: u32, driver: u32) -> Result<(), Refusal> {
    let refuse = |code, words| Err(Refusal { code, words });
    let newest = newest_ptx(driver);
    if header.version > newest {
        let (version, newest) = (f64::from(header.version) / 10.0, f64::from(newest) / 10.0);
        return refuse(
            Code::UNSUPPORTED_PTX_VERSION,
            format!("PTX version {version} is newer than {newest}, the driver's"),
        );
    }
    if !header.target.runs_on(capability) {
        let words = format!("PTX for {} does not run on sm_{capability}", architecture(header.target));
        return refuse(Code::NO_BINARY_FOR_GPU, words);
    }
    Ok(())
}

fn architecture(target: Target) -> String {
    let suffix = match target.family {
        Family::Later => "",
        Family::SameMajor => "f",
        Family::Exact => "a",
    };
    format!("sm_{}{suffix}", target.capability)
}

impl Sim {
    /// Loads a module on the GPU of context `current`.
    ///
    /// # Errors
    /// `INVALID_PTX` (also from the assembler, and for an instruction the interpreter lacks), `NO_BINARY_FOR_GPU`,
    /// `UNSUPPORTED_PTX_VERSION`, the errors of every call.
    pub(crate) fn load_module(&self, current: Handle, text: &str) -> Result<Handle, Refusal> {
        let (device, capability, execution) = {
            let mut state = self.state();
            let device = state.device_of(current)?;
            self.gate(&mut state, device, Operation::ModuleLoad)?;
            (device, state.device(device)?.card.capability, state.execution)
        };
        let loaded = self.judge(device, capability, execution, text);
        let hash = hash_of(text);
        match loaded {
            Ok(module) => {
                let names: Vec<&str> = module.header.entries.iter().map(|entry| entry.name.as_str()).collect();
                let resources = module.header.entries.first().and_then(|entry| module.resources.get(&entry.name));
                let fields = json!({
                    "device": device, "hash": hash, "kernels": names, "bytes": text.len(),
                    "registers": resources.map(|r| r.registers), "spilled": resources.map(|r| r.spilled),
                });
                self.log.write("module", fields);
                Ok(self.state().modules.insert(Arc::new(module)))
            }
            Err(refusal) => {
                let fields = json!({ "device": device, "hash": hash, "code": refusal.code.0, "why": refusal.words });
                self.log.write("module_refused", fields);
                self.state().device_mut(device)?.counts.modules_refused += 1;
                Err(refusal)
            }
        }
    }

    fn judge(&self, device: usize, capability: u32, execution: Execution, text: &str) -> Result<Module, Refusal> {
        let header = Header::read(text)?;
        accept(&header, capability, self.settings.driver)?;
        let resources = self.keep_and_assemble(&header, text)?;
        let module = Module {
            device,
            header,
            resources,
            text: text.to_owned(),
            program: OnceLock::new(),
            measured: Mutex::default(),
        };
        if execution != Execution::Skip {
            let refused = |error: &ptx::PtxError| Refusal { code: Code::INVALID_PTX, words: error.to_string() };
            self.program(&module).map_err(refused)?;
        }
        Ok(module)
    }

    /// Writes the text to the PTX folder and asks the assembler, as the settings say.
    fn keep_and_assemble(&self, header: &Header, text: &str) -> Result<HashMap<String, Resources>, Refusal> {
        let failed = |error: io::Error| Refusal { code: Code(304), words: error.to_string() };
        let kept = self.settings.ptx_folder.as_deref().map(|folder| {
            let folder = with_process(folder);
            std::fs::create_dir_all(&folder)?;
            let file = folder.join(format!("{}.ptx", hash_of(text)));
            if !file.exists() {
                std::fs::write(&file, text)?;
            }
            Ok(file)
        });
        let kept: Option<PathBuf> = kept.transpose().map_err(failed)?;
        let Some(assembler) = self.assembler.as_deref().filter(|_| !header.entries.is_empty()) else {
            return Ok(HashMap::new());
        };
        let own = std::env::temp_dir().join(format!("kiln-cuda-sim-{}-{}.ptx", std::process::id(), hash_of(text)));
        let file = kept.as_ref().unwrap_or(&own);
        if kept.is_none() {
            std::fs::write(file, text).map_err(failed)?;
        }
        let verdict = assemble(assembler, file, &architecture(header.target));
        if kept.is_none() {
            // a file that is gone already is as good
            let _ = std::fs::remove_file(file);
        }
        match verdict.map_err(failed)? {
            Verdict::Accepted(resources) => Ok(resources),
            Verdict::Refused(words) => Err(Refusal { code: Code::INVALID_PTX, words }),
        }
    }

    /// The module as the interpreter runs it, parsed at the first call, its variables in device memory.
    ///
    /// # Errors
    /// Why the text cannot run.
    pub(crate) fn program<'m>(&self, module: &'m Module) -> Result<&'m Program, &'m ptx::PtxError> {
        let parse = || {
            let parsed = ptx::Module::parse(&module.text)?;
            let mut globals = vec![];
            for global in parsed.globals() {
                match self.place_global(module.device, global) {
                    Ok(start) => globals.push(start),
                    Err(error) => {
                        globals.into_iter().for_each(|start: u64| drop(self.state().space.remove(start)));
                        return Err(error);
                    }
                }
            }
            Ok(Program { module: parsed, globals })
        };
        module.program.get_or_init(parse).as_ref()
    }

    /// Puts a variable of a module into device memory; gives its address.
    fn place_global(&self, device: usize, global: &ptx::Global) -> Result<u64, ptx::PtxError> {
        let bytes = global.bytes.max(1);
        let no_room = |_| ptx::PtxError::NoRoom { bytes };
        let pages = Mapping::new(bytes as usize).map_err(no_room)?;
        let start = pages.start();
        let length = global.init.len().min(bytes as usize);
        // SAFETY: the mapping is at least `length` bytes long and nobody else knows it yet.
        unsafe { std::ptr::copy_nonoverlapping(global.init.as_ptr(), start, length) };
        let owner = Owner::Variable(device);
        self.state().space.insert(Allocation { start: start as u64, bytes, charge: 0, owner, _pages: Some(pages) });
        Ok(start as u64)
    }

    /// Unloads a module with its functions and variables.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; the sticky error.
    pub(crate) fn unload_module(&self, handle: Handle) -> Answer {
        let mut state = self.state();
        let module = state.modules.remove(handle)?;
        state.functions.retain(|function| !Arc::ptr_eq(&function.module, &module));
        if let Some(Ok(program)) = module.program.get() {
            program.globals.iter().for_each(|start| drop(state.space.remove(*start)));
        }
        state.device(module.device)?.poison.map_or(Ok(()), Err)
    }

    /// The function of a module by name; the same name gives the same handle.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `NOT_FOUND`; the sticky error.
    pub(crate) fn function(&self, module: Handle, name: &str) -> Answer<Handle> {
        let mut state = self.state();
        let module = Arc::clone(state.modules.get(module)?);
        if let Some(code) = state.device(module.device)?.poison {
            return Err(code);
        }
        let entry = module.header.entries.iter().position(|entry| entry.name == name).ok_or(Code::NOT_FOUND)?;
        let known = state.functions.iter().find(|(_, f)| f.entry == entry && Arc::ptr_eq(&f.module, &module));
        if let Some((handle, _)) = known {
            return Ok(handle);
        }
        let function = Function { device: module.device, module, entry, max_dynamic: None };
        Ok(state.functions.insert(function))
    }

    /// Address and bytes of a module's variable.
    ///
    /// # Errors
    /// `INVALID_HANDLE`; `NOT_FOUND`.
    pub(crate) fn global(&self, module: Handle, name: &str) -> Answer<(u64, u64)> {
        let module = Arc::clone(self.state().modules.get(module)?);
        let program = self.program(&module).map_err(|_| Code::NOT_FOUND)?;
        let globals = program.module.globals().iter().zip(&program.globals);
        globals.into_iter().find(|(global, _)| global.name == name).map(|(g, at)| (*at, g.bytes)).ok_or(Code::NOT_FOUND)
    }
}

/// A name for a text, the same in every run of one build.
fn hash_of(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u32, capability: u32, family: Family) -> Header {
        Header { version, target: Target { capability, family }, entries: Vec::new() }
    }

    #[test]
    fn a_card_refuses_what_is_too_new_for_it() {
        assert!(accept(&header(87, 80, Family::Later), 90, 12_080).is_ok());
        assert!(accept(&header(87, 90, Family::Exact), 90, 12_080).is_ok());
        let version = accept(&header(88, 80, Family::Later), 90, 12_080).expect_err("8.8 on 12.8");
        assert_eq!(version.code, Code::UNSUPPORTED_PTX_VERSION);
        assert!(version.words.contains("8.8") && version.words.contains("8.7"), "{}", version.words);
        let target = accept(&header(80, 90, Family::Exact), 100, 12_080).expect_err("sm_90a on sm_100");
        assert_eq!((target.code, target.words.contains("sm_90a")), (Code::NO_BINARY_FOR_GPU, true));
        assert!(accept(&header(80, 80, Family::Later), 75, 12_080).is_err());
    }
}
