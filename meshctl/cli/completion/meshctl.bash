# bash completes meshctl:   eval "$(meshctl completion bash)"
# in ~/.bashrc, or once:    meshctl completion bash > ~/.local/share/bash-completion/completions/meshctl
_meshctl() {
    local found program=${1/#\~\//$HOME/}
    COMPREPLY=()
    while IFS= read -r found; do
        COMPREPLY+=("$found")
    done < <(COMP_LINE=$COMP_LINE COMP_POINT=$COMP_POINT COMP_WORDBREAKS=$COMP_WORDBREAKS "$program" complete bash 2>/dev/null)
}
complete -o nospace -F _meshctl meshctl
