// A link to a part of the page opens what it is in.
const unfold = () => {
  for (let at = document.getElementById(location.hash.slice(1)); at; at = at.parentElement) {
    if (at.tagName === "DETAILS") at.open = true;
    else if (at.firstElementChild?.tagName === "DETAILS") at.firstElementChild.open = true;
  }
};
addEventListener("hashchange", unfold);
unfold();
