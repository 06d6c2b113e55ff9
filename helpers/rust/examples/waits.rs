//! For dies_with_parent.py: it is killed while it waits.

fn main() {
    let stave = stave_dev::Dev::options().start().expect("a cluster");
    println!("{}", stave.pid());
    std::io::stdin().read_line(&mut String::new()).expect("the end of the input");
}
