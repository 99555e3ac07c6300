//! The parent: it starts replicas under `mpirun`, and hears from them over sockets, so that a group that has ended can still be judged.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// The first argument of a replica.
pub(crate) const AS_REPLICA: &str = "--as-replica";

/// How long all processes of a case may take.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(150);

/// Processes that run one case.
pub(crate) struct Launch {
    replicas: usize,
    case: &'static str,
    with_mpirun: bool,
}

/// How a case ended.
pub(crate) struct Ended {
    /// The code of `mpirun`; none when it was killed.
    pub(crate) code: Option<i32>,
    /// The text that it printed.
    pub(crate) text: String,
    /// The words of the replicas.
    pub(crate) words: Vec<String>,
    pub(crate) after: Duration,
}

impl Launch {
    pub(crate) fn new(replicas: usize, case: &'static str) -> Self {
        Self { replicas, case, with_mpirun: true }
    }

    /// One process that `mpirun` does not start.
    pub(crate) fn alone(case: &'static str) -> Self {
        Self { replicas: 1, case, with_mpirun: false }
    }

    pub(crate) fn run(&self) -> Result<Ended, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|e| e.to_string())?;
        let address = listener.local_addr().map_err(|e| e.to_string())?.to_string();
        let words = listen(listener);
        let executable = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut command = if self.with_mpirun {
            let mut mpirun = Command::new("mpirun");
            mpirun.args(["--oversubscribe", "-n", &self.replicas.to_string()]).arg(executable);
            // CI and containers run as root, and Docker forbids processes to read each other's memory.
            for name in ["OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] {
                mpirun.env(name, "1");
            }
            mpirun.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none");
            mpirun
        } else {
            Command::new(executable)
        };
        let begun = Instant::now();
        let command = command.args([AS_REPLICA, self.case, &address, &self.replicas.to_string()]).stdin(Stdio::null());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let child = child.map_err(|e| format!("mpirun does not start: {e}; scripts/mpi.sh installs it"))?;
        let pid = child.id().to_string();
        let (done, output) = channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let output = output.recv_timeout(TIME_LIMIT).map_err(|_| {
            // mpirun passes the signal on to its processes.
            let _ = Command::new("kill").args(["-TERM", &pid]).status();
            format!("still running after {TIME_LIMIT:?}")
        })?;
        let output = output.map_err(|e| e.to_string())?;
        let text = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        Ok(Ended { code: output.status.code(), text, words: words.try_iter().collect(), after: begun.elapsed() })
    }
}

impl Ended {
    /// Every replica says that its checks passed.
    pub(crate) fn all_passed(&self, replicas: usize) -> Result<(), String> {
        match self.words.iter().filter(|word| *word == PASSED).count() {
            passed if passed == replicas => Ok(()),
            passed => Err(format!("{passed} of {replicas} passed\n{:?}\n{}", self.words, self.text)),
        }
    }
}

const BARRIER: &str = "barrier of ";
pub(crate) const PASSED: &str = "passed";

/// Hears from replicas: words, and calls of the barrier, which are answered when as many have called as they name.
fn listen(listener: TcpListener) -> Receiver<String> {
    let (sender, words) = channel();
    std::thread::spawn(move || {
        let mut waiting: Vec<TcpStream> = vec![];
        for stream in listener.incoming().flatten() {
            let mut word = String::new();
            if BufReader::new(&stream).read_line(&mut word).is_err() {
                continue;
            }
            match (word.trim(), word.trim().strip_prefix(BARRIER)) {
                (_, Some(all)) => {
                    waiting.push(stream);
                    if waiting.len().to_string() == all {
                        // To close a connection is to answer.
                        waiting.clear();
                    }
                }
                (word, None) if sender.send(word.to_owned()).is_err() => return,
                // The replica waits for this, so that it does not end before it was heard.
                _ => drop(stream),
            }
        }
    });
    words
}

/// Tells the parent a word, and returns when it was heard.
pub(crate) fn say(address: &str, word: &str) {
    let mut stream = TcpStream::connect(address).expect("the parent listens");
    stream.write_all(format!("{}\n", word.replace('\n', " ")).as_bytes()).expect("the parent listens");
    // The parent closes the connection.
    let _ = BufReader::new(stream).read_line(&mut String::new());
}

/// Waits until this many replicas have called this.
pub(crate) fn barrier(address: &str, replicas: usize) {
    say(address, &format!("{BARRIER}{replicas}"));
}
