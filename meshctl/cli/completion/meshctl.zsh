#compdef meshctl
# zsh completes meshctl:   eval "$(meshctl completion zsh)"
# in ~/.zshrc behind compinit, or once into a folder of $fpath:   meshctl completion zsh > ~/.zfunc/_meshctl
_meshctl() {
    local found text says
    local -a whole whole_says part part_says
    for found in "${(@f)$("${(Q)words[1]/#\~\//$HOME/}" complete zsh "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        text=${found%%$'\t'*} found=${found#*$'\t'} says=${found%$'\t'*}
        [[ -n $text ]] || continue
        if [[ $found == *$'\t'1 ]]; then
            whole+=("$text") whole_says+=("$text${says:+  $says}")
        else
            part+=("$text") part_says+=("$text${says:+  $says}")
        fi
    done
    (( $#whole )) && compadd -l -d whole_says -a whole
    (( $#part )) && compadd -l -S '' -d part_says -a part
    (( $#whole + $#part ))
}
if [[ $funcstack[1] == _meshctl ]]; then
    _meshctl "$@"
else
    compdef _meshctl meshctl
fi
