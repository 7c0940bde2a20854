# fish completes meshctl:   meshctl completion fish > ~/.config/fish/completions/meshctl.fish
function __meshctl
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l plain (string unescape -- "$word"; or string replace -r '^[\'"]' '' -- "$word")
    set -l program (string replace -r '^~/' "$HOME/" -- $words[1])
    set -e words[1]
    $program complete fish $words "$plain" 2>/dev/null
end
complete -c meshctl -f -k -a '(__meshctl)'
