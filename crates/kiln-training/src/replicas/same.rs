//! Compares settings that must be equal on all replicas, before a run begins.

use kiln_parallel::Communicator;

use crate::error::Error;

/// A name in plain words, and a value as text.
pub(crate) type Fact = (&'static str, String);

/// Checks that `facts` are equal on all replicas.
///
/// # Errors
/// [`Error::Replica`] on all replicas. It names the first replica that differs from replica 0, and how. [`Error::Parallel`].
pub(crate) fn same(communicator: &dyn Communicator, facts: &[Fact]) -> Result<(), Error> {
    let unreadable = |e: serde_json::Error| {
        Error::Parallel(kiln_parallel::Error::Transfer { operation: "exchange", reason: e.to_string() })
    };
    let message = serde_json::to_vec(facts).map_err(unreadable)?;
    let all = communicator.exchange(&message)?;
    let read = |message: &Vec<u8>| serde_json::from_slice::<Vec<(String, String)>>(message).map_err(unreadable);
    let all: Vec<_> = all.iter().map(read).collect::<Result<_, _>>()?;
    match different(&all) {
        Some((rank, reason)) => Err(Error::Replica { rank, reason }),
        None => Ok(()),
    }
}

/// The first replica that differs from the first one, and how.
fn different(all: &[Vec<(String, String)>]) -> Option<(usize, String)> {
    let first = all.first()?;
    all.iter().enumerate().find_map(|(rank, own)| {
        let pair = own.iter().zip(first).find(|(own, first)| own != first);
        match pair {
            Some(((name, found), (of_first, expected))) if name == of_first => {
                Some((rank, format!("its {name} is {found}, expected {expected} as on replica 0")))
            }
            None if own.len() == first.len() => None,
            // The replica is at another point of the program.
            _ => Some((rank, "it compares other settings than replica 0: another program, or another call".into())),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::thread;

    use kiln_parallel::Local;

    use super::*;

    fn facts(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_difference_from_the_first_replica_is_named() {
        let (a, b) = (facts(&[("seed", "1"), ("clip norm", "2")]), facts(&[("seed", "1"), ("clip norm", "3")]));
        assert_eq!(different(&[a.clone(), a.clone()]), None);
        assert_eq!(different(&[]), None);
        let found = different(&[a.clone(), a.clone(), b.clone(), b]);
        assert_eq!(found, Some((2, "its clip norm is 3, expected 2 as on replica 0".into())));
        for other in [facts(&[("seed", "1")]), facts(&[("step", "1"), ("clip norm", "2")])] {
            assert!(different(&[a.clone(), other]).unwrap().1.contains("another call"));
        }
    }

    #[test]
    fn all_replicas_get_the_same_answer() {
        let errors: Vec<String> = thread::scope(|scope| {
            let replicas: Vec<_> = Local::group(3)
                .into_iter()
                .map(|replica| {
                    scope.spawn(move || {
                        same(&replica, &[("seed", "7".into())]).unwrap();
                        same(&replica, &[("seed", (replica.rank() / 2).to_string())]).unwrap_err().to_string()
                    })
                })
                .collect();
            replicas.into_iter().map(|replica| replica.join().unwrap()).collect()
        });
        assert_eq!(errors, ["replica 2 failed: its seed is 1, expected 0 as on replica 0"; 3]);
    }
}
