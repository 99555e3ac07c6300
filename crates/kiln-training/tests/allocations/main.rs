mod lost;
mod pages;
mod run;
mod steps;
mod tasks;
